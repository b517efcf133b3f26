"""The official client gets what it would get from OpenAI."""

import asyncio

import openai
import pytest
from gateway_harness import Gateway, running
from scripted_inference import MODEL, ScriptedInference

from headrace.core.errors import ContextLengthExceeded, ModelNotFound, Overloaded, WorkerLost

QUESTION = [{"role": "user", "content": "Capital of France?"}]
PROMPT_TOKENS = len("user:Capital of France?;")


def client(gateway: Gateway, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


async def test_a_whole_chat() -> None:
    async with running() as gateway, client(gateway) as ai:
        answer = await ai.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == "Paris"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    assert answer.usage.completion_tokens == 2
    assert answer.usage.total_tokens == PROMPT_TOKENS + 2
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_a_streamed_chat_opens_with_the_role_and_ends_with_usage() -> None:
    async with running() as gateway, client(gateway) as ai:
        stream = await ai.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert [c.choices[0].delta.content for c in chunks[1:-1]] == ["Par", "is"]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{gateway.inference.lives[0].request.id}"}


async def test_the_synchronous_client_both_ways() -> None:
    def ask(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
            whole = ai.chat.completions.create(model=MODEL, messages=QUESTION)
            stream = ai.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    async with running() as gateway:
        assert await asyncio.to_thread(ask, gateway.url) == ("Paris", "Paris")


async def test_completions_both_ways() -> None:
    async with running() as gateway, client(gateway) as ai:
        whole = await ai.completions.create(model=MODEL, prompt="Once", max_tokens=5)
        stream = await ai.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True)
        pieces = [chunk async for chunk in stream]
    assert whole.choices[0].text == "Paris"
    assert whole.object == "text_completion"
    assert whole.usage.prompt_tokens == 4
    assert "".join(piece.choices[0].text for piece in pieces) == "Paris"


async def test_several_choices_are_several_generations() -> None:
    """1. Two prompts, two choices each: four generations. 2. Numbered prompt by prompt. 3. A prompt counts once."""
    inference = ScriptedInference(lambda request: ("seed ", str(request.sampling.seed)))
    async with running(inference) as gateway, client(gateway) as ai:
        whole = await ai.completions.create(model=MODEL, prompt=["ab", "abcd"], n=2, seed=7)
        stream = await ai.chat.completions.create(model=MODEL, messages=QUESTION, n=3, seed=1, stream=True)
        texts = {0: "", 1: "", 2: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [choice.text for choice in whole.choices] == ["seed 7", "seed 8", "seed 7", "seed 8"]
    assert whole.usage.prompt_tokens == 6
    assert whole.usage.completion_tokens == 8
    assert whole.usage.prompt_tokens_details.cached_tokens == 6
    assert texts == {0: "seed 1", 1: "seed 2", 2: "seed 3"}
    assert len({life.request.id for life in inference.lives}) == 7


async def test_an_answers_turn_can_be_sent_back() -> None:
    async with running() as gateway, client(gateway) as ai:
        first = await ai.chat.completions.create(model=MODEL, messages=QUESTION)
        turns = [*QUESTION, first.choices[0].message, {"role": "user", "content": "And of Italy?"}]
        await ai.chat.completions.create(model=MODEL, messages=turns)
    prompt = gateway.inference.lives[1].request.prompt
    assert [(turn.role, turn.content) for turn in prompt.messages] == [
        ("user", "Capital of France?"),
        ("assistant", "Paris"),
        ("user", "And of Italy?"),
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (ModelNotFound("There is no such model."), openai.NotFoundError, "model_not_found"),
        (ContextLengthExceeded("It does not fit."), openai.BadRequestError, "context_length_exceeded"),
        (Overloaded("Full.", retry_after_s=2.2), openai.RateLimitError, "overloaded"),
        (WorkerLost("The worker died."), openai.InternalServerError, "worker_lost"),
    ],
)
async def test_errors_before_the_first_token_have_their_own_status(
    stream: bool, error: Exception, expected: type[openai.APIStatusError], code: str
) -> None:
    async with running(ScriptedInference([error])) as gateway, client(gateway) as ai:
        with pytest.raises(expected) as caught:
            await ai.chat.completions.create(model=MODEL, messages=QUESTION, stream=stream)
    assert caught.value.code == code
    assert caught.value.response.headers.get("retry-after") == {"overloaded": "3", "worker_lost": "1"}.get(code)


async def test_an_error_inside_the_stream_reaches_the_client() -> None:
    script = ["Par", WorkerLost("The worker died.")]
    async with running(ScriptedInference(script)) as gateway, client(gateway) as ai:
        stream = await ai.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError, match=r"The worker died\."):
            [chunk async for chunk in stream]


async def test_characters_split_between_chunks_arrive_whole() -> None:
    """Text lags behind tokens: chunks without text send nothing. Line breaks and separators stay inside their event."""
    script = ["", "né", "", "", "👩‍🚀", "\n\ndata: x\r\n\u2028", "語"]
    async with running(ScriptedInference(script)) as gateway, client(gateway) as ai:
        stream = await ai.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
    assert pieces == ["", "né", "👩‍🚀", "\n\ndata: x\r\n\u2028", "語"]


async def test_models_as_the_client_reads_them() -> None:
    async with running() as gateway, client(gateway) as ai:
        assert [model.id async for model in ai.models.list()] == [MODEL, "org/other"]
        assert (await ai.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            await ai.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"
