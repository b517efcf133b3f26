"""Detokenisation is exact to the byte, however the bytes are spread over tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.text.detokenize import Detokenizer

BYTES = [bytes([value]) for value in range(256)]

cut_bytes = st.tuples(
    st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), st.lists(st.integers(0, 40), max_size=8)
)


@given(cut_bytes)
def test_pieces_join_to_the_whole_decoded(case: tuple[bytes, list[int]]) -> None:
    data, cuts = case
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    token_bytes = [data[start:end] for start, end in pairwise(borders)]
    detokenizer = Detokenizer(token_bytes)
    pieces = [detokenizer.push(token) for token in range(len(token_bytes))]
    assert "".join(pieces) + detokenizer.flush() == data.decode("utf-8", "replace")


@given(st.text(max_size=30))
def test_valid_text_never_shows_a_replacement_on_the_way(text: str) -> None:
    detokenizer = Detokenizer(BYTES)
    shown = ""
    for value in text.encode():
        shown += detokenizer.push(value)
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.flush() == ""


def test_a_character_comes_with_its_last_byte() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(value) for value in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_an_unfinished_character_ends_as_one_replacement_and_leaves_nothing() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(value) for value in "🙂".encode()[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.push(ord("a")) == "a"


def test_ids_beyond_the_table_have_no_text() -> None:
    detokenizer = Detokenizer([b"a", b""])
    assert [detokenizer.push(token) for token in (0, 1, 2, 10**6, 0)] == ["a", "", "", "", "a"]
