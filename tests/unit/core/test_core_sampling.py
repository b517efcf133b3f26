"""Sampling parameters: every bad value is refused by name, every limit itself is allowed."""

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.logprobs import MAX_LOGPROBS
from headrace.core.sampling import MAX_STOP_STRINGS, SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 2.01, NAN, INF, -INF]),
        ("top_p", [0, -0.1, 1.01, NAN, INF]),
        ("top_k", [-1, 2**31]),
        ("min_p", [-0.01, 1.01, NAN, INF]),
        ("presence_penalty", [-2.01, 2.01, NAN, INF]),
        ("frequency_penalty", [-2.01, 2.01, NAN, -INF]),
        ("repetition_penalty", [0.0, -1.0, NAN, INF]),
        ("logit_bias", [((0, 100.1),), ((0, -100.1),), ((0, NAN),), ((-1, 0.0),), ((2**31, 0.0),), ((0, 1), (1, INF))]),
        ("allowed_token_ids", [(), (-1,), (2**31,), (0, 1, -5)]),
        ("bad_words", [("",), ("a", "")]),
        ("min_tokens", [-1, 2**31]),
        ("seed", [2**63, -(2**63) - 1]),
        ("max_tokens", [0, -1, 2**31]),
        ("stop", [("",), ("a",) * (MAX_STOP_STRINGS + 1)]),
        ("stop_token_ids", [(-1,), (2**31,)]),
        ("logprobs", [-1, MAX_LOGPROBS + 1]),
        ("prompt_logprobs", [-1, MAX_LOGPROBS + 1]),
    ],
)
def test_bad_values_are_refused_by_name(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=field):
            SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("word", [(), (-1,), (0, 2**31)])
def test_bad_words_as_ids_are_token_ids(word: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="bad_words"):
        SamplingParams(bad_word_ids=((1,), word))


def test_min_tokens_leaves_room_for_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(min_tokens=6, max_tokens=5)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0.0, 5e-324, 2.0]),
        ("top_p", [5e-324, 1.0]),
        ("top_k", [0, 1, 2**31 - 1]),
        ("min_p", [0.0, 1.0]),
        ("presence_penalty", [-2.0, 2.0]),
        ("frequency_penalty", [-2.0, 2.0]),
        ("repetition_penalty", [5e-324, 1e308]),
        ("logit_bias", [(), ((0, -100.0), (2**31 - 1, 100.0))]),
        ("allowed_token_ids", [None, (0,), (2**31 - 1,)]),
        ("seed", [2**63 - 1, -(2**63)]),
        ("stop", [("a",) * MAX_STOP_STRINGS]),
        ("logprobs", [None, 0, MAX_LOGPROBS]),
        ("prompt_logprobs", [None, 0, MAX_LOGPROBS]),
    ],
)
def test_limits_themselves_are_allowed(field: str, values: list[object]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]


def test_a_request_that_says_nothing_is_neither_greedy_nor_filtered() -> None:
    plain = SamplingParams()
    assert not plain.greedy
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p, plain.repetition_penalty) == (1, 1, 0, 0, 1)
    assert SamplingParams(temperature=0.0).greedy
