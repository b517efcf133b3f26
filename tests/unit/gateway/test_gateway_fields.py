"""Every field is honoured or refused, none dropped."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from gateway_harness import CHAT, COMPLETIONS, Gateway, chat, completion, running

from headrace.core.generation import ChatPrompt, Message, TextPrompt, TokenPrompt
from headrace.core.sampling import SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Gateway]:
    async with running(request_timeout_s=9.0) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    """The one gateway of this file, with nothing asked of it yet."""
    shared.inference.lives.clear()
    return shared


async def test_all_sampling_fields_arrive(gateway: Gateway) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": -3,
        "max_completion_tokens": 12,
        "stop": ["END", "\n"],
        "stop_token_ids": [2, 7],
        "ignore_eos": True,
    }
    response = await gateway.http.post(CHAT, json=chat(**fields, cache_salt="salt"))
    assert response.status_code == 200, response.text
    request = gateway.inference.lives[0].request
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-3,
        max_tokens=12,
        stop=("END", "\n"),
        stop_token_ids=(2, 7),
        ignore_eos=True,
    )
    assert request.cache_salt == "salt"
    assert request.timeout_s == 9.0


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, chat(), SamplingParams()),
        (CHAT, chat(temperature=None, top_k=-1, stop=None, n=None), SamplingParams()),
        (CHAT, chat(stop="END", max_tokens=4), SamplingParams(stop=("END",), max_tokens=4)),
        (CHAT, chat(max_tokens=4, max_completion_tokens=4), SamplingParams(max_tokens=4)),
        (COMPLETIONS, completion(), SamplingParams(max_tokens=16)),
        (COMPLETIONS, completion(temperature=0, max_tokens=9), SamplingParams(temperature=0.0, max_tokens=9)),
    ],
)
async def test_defaults(gateway: Gateway, path: str, body: dict[str, Any], expected: SamplingParams) -> None:
    assert (await gateway.http.post(path, json=body)).status_code == 200
    assert gateway.inference.lives[0].request.sampling == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "developer", "content": "Be brief."}], [Message("system", "Be brief.")]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [Message("user", "a\nb")],
        ),
        (
            [{"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}],
            [Message("assistant", "x")],
        ),
    ],
)
async def test_messages(gateway: Gateway, messages: list[Any], expected: list[Message]) -> None:
    assert (await gateway.http.post(CHAT, json=chat(messages=messages))).status_code == 200
    assert gateway.inference.lives[0].request.prompt == ChatPrompt(tuple(expected))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", [TextPrompt("text")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([[1], [2, 3]], [TokenPrompt((1,)), TokenPrompt((2, 3))]),
        (["a", [1]], [TextPrompt("a"), TokenPrompt((1,))]),
    ],
)
async def test_prompts(gateway: Gateway, prompt: Any, expected: list[Any]) -> None:
    assert (await gateway.http.post(COMPLETIONS, json=completion(prompt=prompt))).status_code == 200
    assert [life.request.prompt for life in gateway.inference.lives] == expected


NEUTRAL = {
    "store": False,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "response_format": {"type": "text"},
    "best_of": 1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": True,
    "logprobs": False,
    "top_logprobs": 0,
    "bad_words": [],
    "min_tokens": 0,
    "priority": 0,
    "tools": [],
    "tool_choice": "none",
    "modalities": ["text"],
}


async def test_neutral_values_change_nothing(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, json=chat(**NEUTRAL))
    assert response.status_code == 200, response.text
    assert gateway.inference.lives[0].request.sampling == SamplingParams()


UNSUPPORTED = [
    (CHAT, chat, "tools", [{"type": "function", "function": {"name": "f"}}]),
    (CHAT, chat, "response_format", {"type": "json_object"}),
    (CHAT, chat, "audio", {"voice": "x"}),
    (CHAT, chat, "modalities", ["text", "audio"]),
    (CHAT, chat, "store", True),
    (CHAT, chat, "reasoning_effort", "low"),
    (CHAT, chat, "best_of", 2),
    (CHAT, chat, "chat_template", "{{ messages }}"),
    (CHAT, chat, "echo", True),
    (CHAT, chat, "skip_special_tokens", False),
    (COMPLETIONS, completion, "suffix", "end"),
    (COMPLETIONS, completion, "best_of", 3),
    ("/tokenize", completion, "return_token_strs", True),
    ("/tokenize", completion, "add_special_tokens", False),
]


@pytest.mark.parametrize(("path", "body", "field", "value"), UNSUPPORTED)
async def test_what_is_not_supported_says_so(gateway: Gateway, path: str, body: Any, field: str, value: Any) -> None:
    response = await gateway.http.post(path, json=body(**{field: value}))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == field
    assert error["message"].startswith(f"{field} is not supported")
    assert gateway.inference.lives == []


REFUSED = [
    (CHAT, chat(temprature=1), "temprature", "Did you mean temperature?"),
    (CHAT, chat(max_token=1), "max_token", "Did you mean max_tokens?"),
    (CHAT, {"model": "m", "mesages": []}, "mesages", "Did you mean messages?"),
    (CHAT, chat(zzzzqqqq=1), "zzzzqqqq", "Unknown field"),
    (CHAT, chat(messages=[{"role": "user", "contents": "x"}]), "messages[0].contents", "Did you mean content?"),
    (CHAT, chat(stream=True, stream_options={"include_usge": True}), "stream_options.include_usge", "include_usage"),
    (CHAT, {"model": "m"}, "messages", "required"),
    (CHAT, chat(messages=[]), "messages", "at least one"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content", "required"),
    (CHAT, chat(messages=[{"role": "user", "content": None}]), "messages[0].content", "string or a list"),
    (CHAT, chat(messages=[{"role": "tool", "content": "x"}]), "messages[0].role", "should be"),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        "messages[0].content",
        "only parts of type text",
    ),
    (CHAT, chat(temperature="hot"), "temperature", "valid number"),
    (CHAT, chat(temperature=-1), "temperature", "temperature must lie"),
    (CHAT, chat(top_p=0), "top_p", "top_p must be"),
    (CHAT, chat(max_tokens=0), "max_tokens", "max_tokens must be"),
    (CHAT, chat(max_tokens=1, max_completion_tokens=2), "max_tokens", "differ"),
    (CHAT, chat(seed=2**63), "seed", "seed must be"),
    (CHAT, chat(top_k=-2), "top_k", "top_k must be"),
    (CHAT, chat(stop=[""]), "stop", "empty string"),
    (CHAT, chat(stop=5), "stop", "string or a list of strings"),
    (CHAT, chat(stop=["a"] * 17), "stop", "at most 16"),
    (CHAT, chat(n=0), "n", "between 1 and"),
    (CHAT, chat(n=1000), "n", "between 1 and"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options", "only allowed when stream"),
    (COMPLETIONS, completion(prompt=[]), "prompt", "none empty"),
    (COMPLETIONS, completion(prompt=[[]]), "prompt", "none empty"),
    (COMPLETIONS, completion(prompt=[1, "a"]), "prompt", "token ids"),
    (COMPLETIONS, completion(prompt=[-1]), "prompt", "0 or more"),
    (COMPLETIONS, completion(prompt=[2**31]), "prompt", "0 or more"),
    (COMPLETIONS, completion(prompt=None), "prompt", "must be a string"),
    (COMPLETIONS, {"prompt": "x"}, "model", "One of: scripted, org/other"),
    ("/tokenize", {"model": "m"}, "prompt", "Exactly one"),
    ("/detokenize", {"model": "m"}, "tokens", "required"),
]


@pytest.mark.parametrize(("path", "body", "param", "sentence"), REFUSED)
async def test_what_is_wrong_is_named(
    gateway: Gateway, path: str, body: dict[str, Any], param: str | None, sentence: str
) -> None:
    response = await gateway.http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert sentence in error["message"]
    assert gateway.inference.lives == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", "invalid_value"),
        (b'{"model": "m", "messages": [], "temperature": NaN}', "invalid_value"),
        (b'{"model": "m", "messages": [], "temperature": 1e999}', "invalid_value"),
        (b'{"model": "m", "messages": [], "min_p": Infinity}', "invalid_value"),
    ],
)
async def test_bodies_that_are_not_json(gateway: Gateway, content: bytes, code: str) -> None:
    response = await gateway.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


async def test_only_json_is_read(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, data={"model": "m"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_content_type"
