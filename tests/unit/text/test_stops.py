"""The incremental stop matcher against a search of the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.stops import StopMatcher


def searched(text: str, stops: list[str]) -> tuple[str, bool]:
    """What is shown of `text`: up to the match that ends first, the longest of those that end there."""
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        return text, False
    end, negative_length = min(ends)
    return text[: end + negative_length], True


def fed(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        emitted, stopped = matcher.push(piece)
        shown += emitted
        if stopped:
            assert matcher.flush() == ""
            return shown, True
    return shown + matcher.flush(), False


few_letters = st.text("ab", max_size=6)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@given(st.lists(few_letters, max_size=8), stop_lists)
def test_equals_the_search_of_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    assert fed(pieces, stops) == searched("".join(pieces), stops)


@given(st.text("ab", max_size=30), stop_lists)
def test_where_the_text_is_cut_makes_no_difference(text: str, stops: list[str]) -> None:
    assert fed(list(text), stops) == fed([text], stops)


@given(st.lists(few_letters, max_size=8), stop_lists)
def test_holds_back_only_what_may_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    whole = shown = ""
    for piece in pieces:
        emitted, stopped = matcher.push(piece)
        if stopped:
            return
        whole, shown = whole + piece, shown + emitted
        held = whole[len(shown) :]
        assert whole == shown + held
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.lists(few_letters, max_size=8), stop_lists, st.integers(0, 8), st.booleans())
def test_only_ends_in_armed_text_count(pieces: list[str], stops: list[str], unarmed: int, keep: bool) -> None:
    """Against a search of the whole text, which begins where the first armed piece does."""
    matcher = StopMatcher(stops, keep_stop=keep)
    shown, stopped = "", False
    for number, piece in enumerate(pieces):
        emitted, stopped = matcher.push(piece, armed=number >= unarmed)
        shown += emitted
        if stopped:
            break
    whole, free = "".join(pieces), len("".join(pieces[:unarmed]))
    ends = [
        (end, -len(stop)) for stop in stops for end in range(free + 1, len(whole) + 1) if whole[:end].endswith(stop)
    ]
    assert stopped == bool(ends)
    if ends:
        end, negative_length = min(ends)
        assert shown == whole[: end if keep else end + negative_length]
    else:
        assert shown + matcher.flush() == whole


def test_a_stop_string_over_three_tokens() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("Hi.\n") == ("Hi.", False)
    assert matcher.push("Us") == ("", False)
    assert matcher.push("er: no") == ("", True)


def test_what_was_held_back_comes_when_it_turns_out_to_be_text() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("Hi.\nUs") == ("Hi.", False)
    assert matcher.push("ually") == ("\nUsually", False)
    assert matcher.push("\nU") == ("", False)
    assert matcher.flush() == "\nU"


@pytest.mark.parametrize("stops", [["ab", "b"], ["b", "ab"]])
def test_of_matches_that_end_together_the_longest_wins(stops: list[str]) -> None:
    assert fed(["xab"], stops) == ("x", True)


def test_the_match_that_ends_first_wins() -> None:
    assert fed(["abcd"], ["abcd", "bc"]) == ("a", True)


def test_no_stop_strings_hold_nothing() -> None:
    assert StopMatcher([]).push("text") == ("text", False)


@pytest.mark.timeout(10)
def test_long_stop_strings_cost_no_more_than_short_ones() -> None:
    matcher = StopMatcher(["a" * 200_000 + "b"] * 4)
    shown = [matcher.push("a" * 100)[0] for _ in range(3000)]
    assert sum(map(len, shown)) + len(matcher.flush()) == 300_000
