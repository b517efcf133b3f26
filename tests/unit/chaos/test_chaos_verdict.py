"""What a case's answers are held to: each way of going wrong is seen, and nothing else is."""

from copy import deepcopy

import pytest

from headrace.chaos.client import Heard
from headrace.chaos.verdict import Counts, finished, judge, total

SENTENCE = {"type": "server_error", "message": "The worker that served this left."}


def said(index: int, text: str, ids: list[int], reason: str | None = None) -> dict[str, object]:
    return {"index": index, "text": text, "token_ids": ids, "finish_reason": reason}


def told(*choices: dict[str, object], done: int = 1, errors: tuple[dict[str, str], ...] = (), cut: str = "") -> Heard:
    heard = Heard(done=done, cut=cut, errors=list(errors))
    heard.take({"choices": choices})
    return heard


RIGHT = told(said(0, "ab", [1, 2]), said(0, "c", [3], "length"), said(1, "xyz", [7, 8, 9], "length"))
BEGUN = said(0, "ab", [1, 2])


def test_an_equal_answer_is_clean_however_it_was_cut_into_pieces() -> None:
    heard = told(said(1, "x", [7]), said(0, "abc", [1, 2, 3], "length"), said(1, "yz", [8, 9], "length"))
    judged = judge("it", heard, RIGHT, may_be_cut=False)
    assert (judged.state, judged.counts, judged.complaints) == ("finished", Counts(), ())


@pytest.mark.parametrize("part", ["token_ids", "text", "logprobs", "reasons"])
def test_a_finished_answer_that_differs_anywhere_is_wrong(part: str) -> None:
    heard = deepcopy(RIGHT)
    changed = {"token_ids": [1, 2, 4], "text": "abd", "logprobs": {"tokens": ["a"]}, "reasons": ["stop"]}
    setattr(heard.choices[0], part, changed[part])
    judged = judge("it", heard, RIGHT, may_be_cut=False)
    assert judged.counts == Counts(wrong=1)
    assert part in judged.complaints[0]


def test_a_choice_too_few_is_wrong() -> None:
    assert judge("it", told(said(0, "abc", [1, 2, 3], "length")), RIGHT, may_be_cut=False).counts.wrong == 1


def test_an_error_with_a_sentence_is_an_ending_as_far_as_what_came_before_is_right() -> None:
    heard = told(BEGUN, done=0, errors=(SENTENCE,))
    assert judge("it", heard, RIGHT, may_be_cut=False).counts == Counts()
    heard = told(said(0, "ab", [1, 9]), done=0, errors=(SENTENCE,))
    assert judge("it", heard, RIGHT, may_be_cut=False).counts == Counts(wrong=1)


@pytest.mark.parametrize("error", [{}, {"message": "oops", "type": "x"}, {"message": SENTENCE["message"]}])
def test_an_error_without_a_sentence_or_a_type_is_wordless(error: dict[str, str]) -> None:
    heard = told(BEGUN, done=0, errors=(error,))
    assert judge("it", heard, RIGHT, may_be_cut=False).counts == Counts(wordless=1)


def test_a_broken_connection_is_an_ending_only_where_the_door_was_struck() -> None:
    heard = told(BEGUN, done=0, cut="ReadError")
    assert judge("it", heard, RIGHT, may_be_cut=True).counts == Counts()
    assert judge("it", heard, RIGHT, may_be_cut=False).counts == Counts(endings=1)


@pytest.mark.parametrize(
    "heard",
    [
        told(BEGUN, done=0),
        told(BEGUN, done=0, errors=(SENTENCE, SENTENCE)),
        told(BEGUN, done=1, errors=(SENTENCE,)),
        told(said(0, "abc", [1, 2, 3], "length"), said(0, "", [], "length"), said(1, "xyz", [7, 8, 9], "length")),
        told(said(0, "abc", [1, 2, 3], "length"), said(1, "xyz", [7, 8, 9], "length"), done=2),
        told(said(0, "abc", [1, 2, 3]), said(1, "xyz", [7, 8, 9], "length")),
        Heard(late=True),
    ],
    ids=["silence", "two errors", "an end and an error", "two reasons", "two ends", "no reason", "late"],
)
def test_none_or_two_endings_are_told(heard: Heard) -> None:
    assert not finished(heard)
    judged = judge("it", heard, RIGHT, may_be_cut=False)
    assert judged.counts.endings == 1
    assert judged.complaints


def test_counts_add_up_and_are_clean_only_if_all_are_zero() -> None:
    assert total([Counts(wrong=1, hung=2), Counts(wrong=1, missed=1)]) == Counts(wrong=2, hung=2, missed=1)
    assert Counts().clean
    assert not any(Counts(**{name: 1}).clean for name in Counts.__dataclass_fields__)


def test_who_left_is_judged_by_what_it_had_heard() -> None:
    heard = told(BEGUN, done=0)
    heard.left = True
    judged = judge("it", heard, RIGHT, may_be_cut=False)
    assert (judged.state, judged.counts) == ("left", Counts())
    wrong = told(said(0, "ab", [1, 9]), done=0)
    wrong.left = True
    assert judge("it", wrong, RIGHT, may_be_cut=False).counts == Counts(wrong=1)
    twice = told(BEGUN, done=1, errors=(SENTENCE,))
    twice.left = True
    assert judge("it", twice, RIGHT, may_be_cut=False).counts == Counts(endings=1)
