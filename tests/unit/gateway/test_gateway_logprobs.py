"""Logprobs as clients know them: OpenAI's shapes for chats and completions, vLLM's for prompts; streamed and whole."""

import json
from typing import Any

import openai
import pytest
from gateway_harness import CHAT, COMPLETIONS, Gateway, chat, completion, running
from scripted_inference import MODEL, ScriptedInference

from headrace.core.generation import Chunk, FinishReason, Usage
from headrace.core.logprobs import TokenLogprob
from headrace.core.resume import ResumePoint


async def asked(gateway: Gateway, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def streamed(gateway: Gateway, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, but for [DONE]."""
    response = await gateway.http.post(path, json=body | {"stream": True})
    assert response.text.endswith("data: [DONE]\n\n"), response.text
    events = response.text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def entry(text: str, logprob: float = -1.25) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


TOP = [entry("A", -0.5), entry("B", -1.0)]
CONTENT = [entry("Par") | {"top_logprobs": TOP}, entry("is") | {"top_logprobs": TOP}]


async def test_a_chats_logprobs_whole_and_streamed() -> None:
    body = chat(logprobs=True, top_logprobs=2)
    async with running() as gateway:
        whole = await asked(gateway, CHAT, body)
        events = await streamed(gateway, CHAT, body)
    assert whole["choices"][0]["logprobs"] == {"content": CONTENT, "refusal": None}
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert pieces[0] is None
    assert [one for piece in pieces[1:] for one in piece["content"]] == CONTENT


async def test_logprobs_without_alternatives() -> None:
    async with running() as gateway:
        whole = await asked(gateway, CHAT, chat(logprobs=True))
        none = await asked(gateway, CHAT, chat())
    assert [one["top_logprobs"] for one in whole["choices"][0]["logprobs"]["content"]] == [[], []]
    assert none["choices"][0]["logprobs"] is None


LEGACY = {
    "tokens": ["Par", "is"],
    "token_logprobs": [-1.25, -1.25],
    "top_logprobs": [{"A": -0.5, "B": -1.0, "Par": -1.25}, {"A": -0.5, "B": -1.0, "is": -1.25}],
    "text_offset": [0, 3],
}


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    return {column: [value for piece in pieces for value in piece[column]] for column in LEGACY}


async def test_a_completions_logprobs_whole_and_streamed() -> None:
    """The token itself is always among the alternatives, also where it is none of the likeliest."""
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, completion(logprobs=2))
        events = await streamed(gateway, COMPLETIONS, completion(logprobs=2))
        alone = await asked(gateway, COMPLETIONS, completion(logprobs=0))
    assert whole["choices"][0]["logprobs"] == LEGACY
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert joined(pieces) == LEGACY
    assert alone["choices"][0]["logprobs"]["top_logprobs"] == [{"Par": -1.25}, {"is": -1.25}]


async def test_tokens_as_their_ids() -> None:
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, completion(logprobs=1, return_tokens_as_token_ids=True))
        talk = await asked(gateway, CHAT, chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True))
    legacy = whole["choices"][0]["logprobs"]
    assert legacy["tokens"] == ["token_id:1", "token_id:2"]
    assert legacy["top_logprobs"][1] == {"token_id:65": -0.5, "token_id:2": -1.25}
    first = talk["choices"][0]["logprobs"]["content"][0]
    assert (first["token"], bytes(first["bytes"])) == ("token_id:1", b"Par")
    assert first["top_logprobs"][0]["token"] == "token_id:65"


def scripted(*tokens: tuple[int, bytes, int], texts: list[str]) -> list[Chunk]:
    """One chunk a token (id, piece, offset), the text as given, the last one an ending."""
    chunks = []
    for place, ((token, piece, offset), text) in enumerate(zip(tokens, texts, strict=True)):
        last = place == len(tokens) - 1
        chunks.append(
            Chunk(
                choice=0,
                position=place,
                text=text,
                token_ids=(token,),
                resume=ResumePoint(0, bytes(8), (), 0),
                finish_reason=FinishReason.STOP if last else None,
                usage=Usage(3, len(tokens), 0) if last else None,
                logprobs=(
                    TokenLogprob(token, -0.5, 1, ((token, -0.5), (9, float("-inf"))), piece, (piece, b""), offset),
                ),
            )
        )
    return chunks


# A snowman in two tokens, then the model's ending.
SNOWMAN = scripted(
    (7, b"\xe2\x98", 0), (8, b"\x83", 0), (5, "é!".encode(), 1), (0, b"<end>", 3), texts=["", "☃", "é!", ""]
)


async def test_parts_of_characters_and_control_tokens_are_exact_to_the_byte() -> None:
    """Pieces without a text of their own are sent at once; probability 0 is the lowest number that JSON is sent."""
    async with running(ScriptedInference(SNOWMAN)) as gateway:
        whole = await asked(gateway, CHAT, chat(logprobs=True, top_logprobs=2))
        events = await streamed(gateway, CHAT, chat(logprobs=True))
        legacy = (await asked(gateway, COMPLETIONS, completion(logprobs=2)))["choices"][0]["logprobs"]
    content = whole["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == "☃é!<end>"
    assert [one["token"] for one in content] == ["\\xe2\\x98", "\\x83", "é!", "<end>"]
    assert content[0]["top_logprobs"][1] == {"token": "", "logprob": -9999.0, "bytes": []}
    assert len(events) == 5
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", None, "☃", "é!", None]
    assert legacy["tokens"] == ["bytes:\\xe2\\x98", "bytes:\\x83", "é!", "<end>"]
    assert legacy["top_logprobs"][0] == {"bytes:\\xe2\\x98": -0.5, "token_id:9": -9999.0}
    assert legacy["text_offset"] == [0, 0, 1, 3]


async def test_without_logprobs_pieces_without_a_text_send_nothing() -> None:
    async with running(ScriptedInference(SNOWMAN)) as gateway:
        events = await streamed(gateway, CHAT, chat())
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", "☃", "é!", None]


def ranked(logprob: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


async def test_prompt_logprobs_as_vllm_has_them() -> None:
    """Of a completion's choices each has them, of a chat the answer has."""
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, completion(prompt="hi", prompt_logprobs=1, n=2))
        none = await asked(gateway, COMPLETIONS, completion(prompt="h", prompt_logprobs=0))
        talk = await asked(gateway, CHAT, chat(prompt_logprobs=0))
        plain = await asked(gateway, CHAT, chat())
    expected = [None, {"105": ranked(-1.25, 3, "i"), "65": ranked(-0.5, 1, "A")}]
    assert [choice["prompt_logprobs"] for choice in whole["choices"]] == [expected, expected]
    assert whole["choices"][0]["logprobs"] is None
    assert none["choices"][0]["prompt_logprobs"] == [None]
    assert talk["prompt_logprobs"][:2] == [None, {str(ord("s")): ranked(-1.25, 3, "s")}]
    assert "prompt_logprobs" not in plain


async def test_token_ids_of_prompt_and_answer() -> None:
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, completion(prompt="hi", return_token_ids=True))
        talk = await asked(gateway, CHAT, chat(return_token_ids=True))
        events = await streamed(gateway, COMPLETIONS, completion(prompt="hi", return_token_ids=True))
        talked = await streamed(gateway, CHAT, chat(return_token_ids=True))
    choice = whole["choices"][0]
    assert (choice["text"], choice["prompt_token_ids"], choice["token_ids"]) == ("Paris", [104, 105], [1, 2])
    assert bytes(talk["prompt_token_ids"]) == b"user:Capital of France?;"
    assert talk["choices"][0]["token_ids"] == [1, 2]
    assert [event["choices"][0].get("prompt_token_ids") for event in events] == [[104, 105], None, None]
    assert [event["choices"][0].get("token_ids") for event in events] == [None, [1], [2]]
    assert bytes(talked[0]["prompt_token_ids"]) == b"user:Capital of France?;"


async def test_the_official_client_reads_them() -> None:
    async with running() as gateway:
        ai = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        async with ai:
            talk = await ai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1
            )
            whole = await ai.completions.create(model=MODEL, prompt="x", logprobs=1, echo=True)
    assert talk.choices[0].logprobs.content[0].token == "Par"
    assert talk.choices[0].logprobs.content[0].top_logprobs[0].bytes == [65]
    assert whole.choices[0].logprobs.token_logprobs == [None, -1.25, -1.25]
    assert whole.choices[0].logprobs.top_logprobs[1] == {"A": -0.5, "Par": -1.25}


ECHOED = {
    "tokens": ["h", "i", "Par", "is"],
    "token_logprobs": [None, -1.25, -1.25, -1.25],
    "top_logprobs": [None, {"A": -0.5, "i": -1.25}, {"A": -0.5, "Par": -1.25}, {"A": -0.5, "is": -1.25}],
    "text_offset": [0, 1, 2, 5],
}


@pytest.mark.parametrize("prompt", ["hi", [104, 105]])
async def test_an_echo_stands_before_the_answer(prompt: Any) -> None:
    body = completion(prompt=prompt, echo=True, logprobs=1)
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, body)
        events = await streamed(gateway, COMPLETIONS, body)
        plain = await asked(gateway, COMPLETIONS, completion(prompt=prompt, echo=True))
    assert whole["choices"][0]["text"] == "hiParis"
    assert whole["choices"][0]["logprobs"] == ECHOED
    assert [event["choices"][0]["text"] for event in events] == ["hi", "Par", "is"]
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert joined(pieces) == ECHOED
    assert (plain["choices"][0]["text"], plain["choices"][0]["logprobs"]) == ("hiParis", None)
    assert whole["usage"]["prompt_tokens"] == 2
    assert whole["usage"]["completion_tokens"] == 2


async def test_an_echo_alone_scores_a_prompt() -> None:
    """`max_tokens: 0`: one token is generated, and neither shown nor counted."""
    body = completion(prompt="hi", echo=True, logprobs=1, max_tokens=0)
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, body)
        events = await streamed(
            gateway, COMPLETIONS, body | {"stream_options": {"include_usage": True}, "stream": True}
        )
        sampling = gateway.inference.lives[0].request.sampling
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert choice["logprobs"] == {column: values[:2] for column, values in ECHOED.items()}
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (2, 0)
    assert (sampling.max_tokens, sampling.logprobs, sampling.prompt_logprobs) == (1, 1, 1)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "hi"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 0


async def test_an_echo_and_prompt_logprobs_each_show_as_many_as_they_were_asked_for() -> None:
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, completion(prompt="hi", echo=True, logprobs=1, prompt_logprobs=3))
        assert gateway.inference.lives[0].request.sampling.prompt_logprobs == 3
    choice = whole["choices"][0]
    assert choice["logprobs"] == ECHOED
    assert set(choice["prompt_logprobs"][1]) == {"105", "65", "66", "67"}


async def test_every_choice_of_every_prompt_has_its_own_echo() -> None:
    body = completion(prompt=["a", "bc"], n=2, echo=True, logprobs=0)
    async with running() as gateway:
        whole = await asked(gateway, COMPLETIONS, body)
        events = await streamed(gateway, COMPLETIONS, body)
    assert [choice["text"] for choice in whole["choices"]] == ["aParis", "aParis", "bcParis", "bcParis"]
    assert [choice["logprobs"]["text_offset"][-1] for choice in whole["choices"]] == [4, 4, 5, 5]
    last = {event["choices"][0]["index"]: event["choices"][0]["logprobs"]["text_offset"][-1] for event in events}
    assert last == {0: 4, 1: 4, 2: 5, 3: 5}
    assert whole["usage"]["prompt_tokens"] == 3
