"""How an answer stops: stop strings and stop tokens, held back by min_tokens, shown or cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_worker import expected
from toy_cluster import ByteText, ask, cluster, collect, ids, options, sampling, text

from headrace.core.generation import Chunk, FinishReason
from headrace.core.jobs import JobKey, TokenEvent
from headrace.router.answer import Answer
from headrace.router.policy import Disaggregation
from headrace.router.reading import Reading

KEY = JobKey("r", 1)


def fed(tokens: bytes, *, pieces: int = 1, **changes: object) -> tuple[Answer, str]:
    """The answer after tokens that came `pieces` at a time, and its text."""
    params = sampling(**{"max_tokens": len(tokens), **changes})
    answer = Answer(ByteText(), Reading((1,), params), b"p" * 8, params)
    chunks: list[Chunk] = []
    for start in range(0, len(tokens), pieces):
        if answer.finished:
            break
        chunk = answer.accept(TokenEvent(KEY, 0, start, tuple(tokens[start : start + pieces])))
        chunks += [chunk] if chunk is not None else []
    return answer, "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize(("min_tokens", "count"), [(0, 3), (2, 3), (3, 6), (5, 6), (6, 9), (8, 9)])
@pytest.mark.parametrize("pieces", [1, 4, 10])
@pytest.mark.parametrize("include", [False, True])
def test_min_tokens_holds_back_stop_strings(min_tokens: int, count: int, pieces: int, include: bool) -> None:
    """`bx` ends with tokens 3, 6 and 9: one of the first min_tokens tokens ends no answer."""
    answer, shown = fed(
        b"abxabxabxz", pieces=pieces, stop=("bx",), min_tokens=min_tokens, include_stop_str_in_output=include
    )
    assert (len(answer.tokens), answer.finish_reason) == (count, FinishReason.STOP)
    assert shown == "abxabxabxz"[: count if include else count - 2]


@pytest.mark.parametrize(("min_tokens", "count"), [(0, 2), (1, 2), (2, 4), (3, 4)])
@pytest.mark.parametrize("include", [False, True])
def test_min_tokens_holds_back_stop_tokens(min_tokens: int, count: int, include: bool) -> None:
    """A stop token with a text of its own is shown where stops are."""
    answer, shown = fed(b"a!b!c", stop_token_ids=(ord("!"),), min_tokens=min_tokens, include_stop_str_in_output=include)
    assert (len(answer.tokens), answer.finish_reason) == (count, FinishReason.STOP)
    assert shown == "a!b!c"[: count if include else count - 1]


def test_the_end_of_the_answer_releases_what_was_held_back() -> None:
    answer, shown = fed(b"aab", stop=("abc",), min_tokens=3)
    assert (shown, answer.finish_reason) == ("aab", FinishReason.LENGTH)


def test_a_stop_token_releases_what_was_held_back() -> None:
    assert fed(b"ab!", stop=("abc",), stop_token_ids=(ord("!"),))[1] == "ab"
    assert fed(b"ab!", stop=("abc",), stop_token_ids=(ord("!"),), include_stop_str_in_output=True)[1] == "ab!"


@settings(max_examples=50)
@given(st.lists(st.sampled_from(b"ab!"), min_size=1, max_size=12), st.integers(0, 6), st.integers(1, 4))
def test_an_answer_resumed_anywhere_stops_at_the_same_token(tokens: list[int], min_tokens: int, pieces: int) -> None:
    changes = {
        "stop": ("ab", "ba"),
        "stop_token_ids": (ord("!"),),
        "min_tokens": min(min_tokens, len(tokens)),
    }
    whole, _ = fed(bytes(tokens), pieces=pieces, **changes)
    params = sampling(**{"max_tokens": len(tokens), **changes})
    for at in range(len(whole.tokens)):
        again = Answer(ByteText(), Reading((1,), params), b"p" * 8, params)
        again.replay(tuple(whole.tokens[:at]))
        again.accept(TokenEvent(KEY, 0, at, tuple(tokens[at:])))
        assert (again.tokens, again.finish_reason) == (whole.tokens, whole.finish_reason)


@pytest.mark.parametrize("prefill", [0, 1])
async def test_through_workers(prefill: int) -> None:
    """The first token alone would end the answer: min_tokens makes decode go on with it."""
    first, *_ = expected(3, 6)
    with_options = options(Disaggregation.ALWAYS if prefill else Disaggregation.NEVER)
    async with cluster(local=1 - prefill, prefill=prefill, decode=prefill, with_options=with_options) as toy:
        params = sampling(stop=(chr(first),), min_tokens=1)
        chunks = await collect(toy, ask(sampling=params))
        assert ids(chunks) == expected(3, 6)
        assert text(chunks) == bytes(expected(3, 6)).decode()
        ended = await collect(toy, ask("other", sampling=sampling(stop=(chr(first),), include_stop_str_in_output=True)))
        assert (ids(ended), text(ended)) == ([first], chr(first))
        await toy.quiet()
