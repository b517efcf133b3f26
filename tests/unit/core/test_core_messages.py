"""Errors, sampling and resume points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BY_CODE, ERRORS, InternalError, InvalidRequest, Overloaded, from_code
from headrace.core.resume import ResumePoint, prompt_digest
from headrace.core.sampling import SamplingParams


def test_each_error_has_a_code_of_its_own_and_comes_back_by_it() -> None:
    assert len(BY_CODE) == len(ERRORS)
    for error in ERRORS:
        back = from_code(error.kind.code, "sentence", retry_after_s=2.0)
        assert type(back) is error
        assert back.retry_after_s == 2.0


def test_a_newer_peers_error_is_internal_and_keeps_its_sentence() -> None:
    back = from_code("from_the_future", "what happened")
    assert type(back) is InternalError
    assert str(back) == "what happened"


def test_message_and_remedy_are_one_text() -> None:
    assert str(Overloaded("Full.", remedy="Come back later.")) == "Full. Come back later."


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_tokens": 0},
        {"seed": 2**63},
        {"stop": ("",)},
        {"stop": ("a",) * 17},
        {"stop_token_ids": (-1,)},
    ],
)
def test_impossible_sampling_is_refused_with_a_sentence_naming_the_field(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_resolved_fills_only_what_is_open() -> None:
    assert SamplingParams(seed=0, max_tokens=5).resolved(7, 9) == SamplingParams(seed=0, max_tokens=5)
    assert SamplingParams().resolved(7, 9) == SamplingParams(seed=7, max_tokens=9)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(0, 2**31 - 1), max_size=50),
    st.data(),
)
def test_resume_points_round_trip_their_prefix(seed: int, generated: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(generated)))
    point = ResumePoint(seed, prompt_digest([1, 2]), generated, count)
    back = ResumePoint.decode(point.encode())
    assert back == ResumePoint(seed, prompt_digest([1, 2]), tuple(generated[:count]), count)


@given(st.binary(max_size=80))
def test_decoding_anything_gives_a_point_or_a_clear_refusal(junk: bytes) -> None:
    try:
        point = ResumePoint.decode(junk)
    except InvalidRequest as error:
        assert "resume" in str(error)
    else:
        assert all(0 <= token < 2**35 for token in point.tokens)
