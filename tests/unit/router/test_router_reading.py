"""What is read of a request: bad words become ids, ids are checked against the vocabulary, the prompt is echoed."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scripted_worker import MODEL
from toy_cluster import ByteText, ask, cluster, collect, options, sampling

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import (
    ChatPrompt,
    Chunk,
    GenerateRequest,
    Message,
    Prompt,
    PromptEcho,
    TextPrompt,
    TokenPrompt,
)
from headrace.router.policy import Disaggregation
from headrace.router.reading import read

LOCAL = options(Disaggregation.NEVER)


def request(prompt: Prompt | None = None, *, echo: bool = False, **changes: object) -> GenerateRequest:
    return GenerateRequest("r", MODEL, prompt or TextPrompt("hi"), sampling(**changes), echo=echo)


async def test_bad_words_are_forbidden_at_the_beginning_and_after_a_space() -> None:
    """1. A word that a space changes has two spellings. 2. What a caller names by ids stays. 3. Nothing twice."""
    reading = await read(ByteText(), request(bad_words=("No", "a", "a"), bad_word_ids=((7,), (97,))))
    assert reading.sampling.bad_word_ids == ((7,), (97,), (78, 111), (32, 78, 111))
    assert reading.sampling.bad_words == ("No", "a", "a")


async def test_workers_are_told_the_ids_of_bad_words() -> None:
    async with cluster(local=1, with_options=LOCAL) as toy:
        await collect(toy, ask(sampling=sampling(bad_words=("No",))))
        assert toy.worker("l1").submits[0].sampling.bad_word_ids == ((78, 111), (32, 78, 111))


@pytest.mark.parametrize(
    ("param", "value", "unknown"),
    [
        ("logit_bias", ((1, 1.0), (256, -1.0)), 256),
        ("allowed_token_ids", (5, 999), 999),
        ("stop_token_ids", (300, 400), 300),
        ("bad_words", (), 256),
    ],
)
async def test_ids_that_the_model_lacks_are_refused_by_name(param: str, value: object, unknown: int) -> None:
    changes = {"bad_word_ids": ((1, 256),)} if param == "bad_words" else {param: value}
    async with cluster(local=1, with_options=LOCAL) as toy:
        with pytest.raises(InvalidRequest, match=rf"{param} names token {unknown},.*0 to 255") as refused:
            await collect(toy, ask(sampling=sampling(**changes)))
        assert refused.value.param == param
        assert toy.worker("l1").submits == []


async def test_reading_stays_off_the_event_loop() -> None:
    class Watched(ByteText):
        threads: set[int]

        def encode(self, prompt: Prompt) -> tuple[int, ...]:
            self.threads.add(threading.get_ident())
            return super().encode(prompt)

        def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
            self.threads.add(threading.get_ident())
            return super().word_ids(word)

    text = Watched()
    text.threads = set()
    await read(text, request(bad_words=("a",)))
    assert text.threads
    assert threading.get_ident() not in text.threads


async def test_an_echo_of_text_is_the_callers_own() -> None:
    reading = await read(ByteText(), request(TextPrompt("né"), echo=True))
    assert reading.echo == PromptEcho("né", tuple("né".encode()), (b"n", b"\xc3", b"\xa9"))
    assert reading.offsets == (0, 1, 1)


async def test_an_echo_of_ids_is_their_text_with_control_tokens() -> None:
    reading = await read(ByteText(), request(TokenPrompt((0, 104, 0, 105)), echo=True))
    assert reading.echo is not None
    assert reading.echo.text == "<end>h<end>i"
    assert reading.offsets == (0, 5, 6, 11)


class Beginning(ByteText):
    """A model whose texts begin with a control token, and whose chats are their contents."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            return super().encode(TextPrompt("".join(turn.content for turn in prompt.messages)))
        return (0, *super().encode(prompt))


async def test_what_the_tokenizer_puts_in_front_has_no_place_in_the_text() -> None:
    reading = await read(Beginning(), request(TextPrompt("hi"), echo=True))
    assert reading.echo == PromptEcho("hi", (0, 104, 105), (b"<end>", b"h", b"i"))
    assert reading.offsets == (0, 0, 1)


async def test_an_echo_of_a_chat_is_what_the_template_made_of_it() -> None:
    chat = ChatPrompt((Message("user", "a"), Message("user", "b")))
    reading = await read(Beginning(), request(chat, echo=True))
    assert reading.echo is not None
    assert reading.echo.text == "ab"


async def test_only_who_asks_pays_for_an_echo() -> None:
    plain = await read(ByteText(), request())
    assert (plain.echo, plain.offsets) == (None, ())
    assert (await read(ByteText(), request(prompt_logprobs=0))).offsets == (0, 1)


@pytest.mark.parametrize("prefill", [0, 1])
async def test_the_first_chunk_has_the_echo_and_a_resumed_stream_none(prefill: int) -> None:
    async with cluster(local=1 - prefill, prefill=prefill, decode=prefill) as toy:
        chunks = await collect(toy, ask(prompt=3, echo=True))
        assert [chunk.prompt is not None for chunk in chunks] == [True, *[False] * (len(chunks) - 1)]
        assert chunks[0].prompt == PromptEcho("\x01\x02\x03", (1, 2, 3), (b"\x01", b"\x02", b"\x03"))
        rest = await collect(toy, ask("again", prompt=3, echo=True, resume=chunks[1].resume.encode()))
        assert _told(rest) == [None] * len(rest)
        unasked = await collect(toy, ask("plain", prompt=3))
        assert _told(unasked) == [None] * len(unasked)


def _told(chunks: Sequence[Chunk]) -> list[PromptEcho | None]:
    return [chunk.prompt for chunk in chunks]


async def test_min_tokens_beyond_the_context_is_refused() -> None:
    async with cluster(local=1, with_options=LOCAL) as toy:
        with pytest.raises(HeadraceError, match=r"min_tokens is 500.*472") as refused:
            await collect(toy, ask(sampling=replace(sampling(min_tokens=5), max_tokens=None, min_tokens=500)))
        assert refused.value.param == "min_tokens"
