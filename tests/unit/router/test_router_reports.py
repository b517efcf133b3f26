"""Logprobs through the router: aligned with their tokens whatever happens, told once, spelled out, never missing."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_worker import expected, logprob_at
from toy_cluster import ByteText, ToyCluster, ask, cluster, collect, ids, options, sampling

from headrace.core.errors import InternalError, TransferFailed
from headrace.core.generation import Chunk, GenerateRequest
from headrace.core.jobs import JobKey, TokenEvent
from headrace.core.logprobs import TokenLogprob
from headrace.router.answer import Answer
from headrace.router.policy import Disaggregation
from headrace.router.reading import Reading

KEY = JobKey("r", 1)
LOCAL = options(Disaggregation.NEVER)


def wanted(request: str = "r1", **changes: object) -> GenerateRequest:
    """A prompt of five tokens, six tokens of answer, two alternatives with each."""
    return ask(request, prompt=5, sampling=sampling(**{"logprobs": 2, "prompt_logprobs": 1, **changes}))


def reports(chunks: Sequence[Chunk]) -> list[TokenLogprob]:
    """All logprobs of an answer, each chunk's one for each of its tokens."""
    for chunk in chunks:
        assert [one.token for one in chunk.logprobs] == list(chunk.token_ids)
    return [one for chunk in chunks for one in chunk.logprobs]


def whole(seed: int = 3, count: int = 6, start: int = 0) -> list[TokenLogprob]:
    """What the scripted workers report, as the router tells it: of letters, one character each."""
    told = []
    for position, token in enumerate(expected(seed, count)[start:], start):
        one = logprob_at(sampling(logprobs=2), token, position)
        assert one is not None
        pieces = tuple(bytes([top]) for top, _ in one.top)
        told.append(replace(one, piece=bytes([token]), top_pieces=pieces, offset=position))
    return told


def prompt_report(chunks: Sequence[Chunk]) -> list[tuple[int, float, bytes, int]]:
    """Of the one chunk that has it."""
    assert not any(chunk.prompt_logprobs for chunk in chunks[1:])
    return [(one.token, one.logprob, one.piece, one.offset) for one in chunks[0].prompt_logprobs]


PROMPT_REPORT = [(token, 1.0 - token, bytes([token]), token - 1) for token in range(2, 6)]


@pytest.mark.parametrize("prefill", [0, 1])
async def test_logprobs_stand_beside_their_tokens(prefill: int) -> None:
    async with cluster(local=1 - prefill, prefill=prefill, decode=prefill) as toy:
        chunks = await collect(toy, wanted())
        assert ids(chunks) == expected(3, 6)
        assert reports(chunks) == whole()
        assert prompt_report(chunks) == PROMPT_REPORT
        await toy.quiet()


async def test_prefill_alone_is_asked_for_the_prompts_logprobs() -> None:
    """Both legs are asked for those of the answer."""
    async with cluster(prefill=1, decode=1) as toy:
        await collect(toy, wanted())
        prefill, decode = toy.worker("p1").submits[0].sampling, toy.worker("d1").submits[0].sampling
        assert (prefill.logprobs, prefill.prompt_logprobs) == (2, 1)
        assert (decode.logprobs, decode.prompt_logprobs) == (2, None)


async def test_a_long_prompts_logprobs_are_spelled_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of prompt tokens, which are below 10, are looked up on threads only."""
    threads: set[int] = set()
    piece = ByteText.piece

    def watched(self: ByteText, token: int) -> bytes:
        if token < 10:
            threads.add(threading.get_ident())
        return piece(self, token)

    monkeypatch.setattr(ByteText, "piece", watched)
    async with cluster(local=1, with_options=LOCAL) as toy:
        assert prompt_report(await collect(toy, wanted())) == PROMPT_REPORT
    assert threads
    assert threading.get_ident() not in threads


async def test_without_asking_there_are_none() -> None:
    async with cluster(local=1, with_options=LOCAL) as toy:
        chunks = await collect(toy, ask())
        assert not any(chunk.logprobs or chunk.prompt_logprobs for chunk in chunks)


async def test_a_death_keeps_them_aligned_and_does_not_ask_for_the_prompts_again() -> None:
    """1. Decode dies after three tokens. 2. Another goes on. 3. Nothing is told twice, nothing is missing."""
    async with cluster(prefill=1, decode=2) as toy:
        first = toy.worker("d1")
        first.at["token 3"] = first.die
        chunks = await collect(toy, wanted())
        assert ids(chunks) == expected(3, 6)
        assert reports(chunks) == whole()
        assert prompt_report(chunks) == PROMPT_REPORT
        again = toy.worker("p1").submits[1]
        assert (again.generated, again.sampling.logprobs, again.sampling.prompt_logprobs) == (3, 2, None)
        await toy.quiet()


async def test_a_failure_before_the_first_token_asks_for_the_prompts_again() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        for name in ("p1", "p2"):
            toy.worker(name).fail_first_with = [TransferFailed("Pages did not verify.")]
        chunks = await collect(toy, wanted())
        assert prompt_report(chunks) == PROMPT_REPORT
        await toy.quiet()


async def resumed(toy: ToyCluster, at: int) -> list[Chunk]:
    chunks = await collect(toy, wanted())
    request = replace(wanted("again"), resume=chunks[at].resume.encode())
    return await collect(toy, request)


@pytest.mark.parametrize("at", [0, 2])
async def test_a_resumed_stream_goes_on_with_them(at: int) -> None:
    async with cluster(prefill=1, decode=1) as toy:
        rest = await resumed(toy, at)
        assert rest[0].position == at + 1
        assert reports(rest) == whole(start=at + 1)
        assert not any(chunk.prompt_logprobs for chunk in rest)


@pytest.mark.parametrize("changes", [{"prompt_logprobs": None}, {"logprobs": None}])
async def test_a_worker_that_reports_none_is_a_defect_and_no_answer(changes: dict[str, object]) -> None:
    async with cluster(local=1, with_options=LOCAL) as toy:
        toy.worker("l1").mute = True
        with pytest.raises(InternalError, match="logprobs"):
            await collect(toy, wanted(**changes))
        await toy.quiet()


def answer(count: int, **changes: object) -> Answer:
    params = sampling(**{"max_tokens": count, "logprobs": 0, **changes})
    return Answer(ByteText(), Reading((1,), params), b"p" * 8, params)


def event(position: int, tokens: Sequence[int]) -> TokenEvent:
    logprobs = tuple(TokenLogprob(token, -float(position + place), 1) for place, token in enumerate(tokens))
    return TokenEvent(KEY, 0, position, tuple(tokens), 0, logprobs)


@settings(max_examples=50)
@given(st.data())
def test_they_are_the_same_however_tokens_are_cut_and_repeated(data: st.DataObject) -> None:
    """Each event overlaps the one before; stop strings cut the last one. Offsets are places in the whole text."""
    tokens = list(data.draw(st.text(alphabet="abé字🙂", min_size=1, max_size=12)).encode())
    stops = tuple(data.draw(st.lists(st.text(alphabet="abé", min_size=1, max_size=2), max_size=2)))
    one = answer(len(tokens), stop=stops)
    chunks: list[Chunk] = []
    start = 0
    while not one.finished:
        begin, end = data.draw(st.integers(0, start)), start + data.draw(st.integers(1, 4))
        chunk = one.accept(event(begin, tokens[begin:end]))
        assert chunk is not None
        chunks.append(chunk)
        start = end
    told = reports(chunks)
    assert [one.logprob for one in told] == [-float(place) for place in range(len(told))]
    assert b"".join(one.piece for one in told) == bytes(tokens[: len(told)])
    before = [len(bytes(tokens[:place]).decode(errors="ignore")) for place in range(len(told))]
    assert [one.offset for one in told] == before
