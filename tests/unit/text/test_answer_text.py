"""An answer's text with stop strings, over held-back characters: against a search of the text so far."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fixtures.piece_tokenizers import write
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace.text.answer_text import AnswerText
from headrace.text.tokenizer import ModelTokenizer

NAMES = ("<0x0A>", "<0x61>", "<0xC3>", "<0xA9>", "<0xFF>", "a", "b", "▁a", "</s>")


@cache
def tokenizers() -> tuple[Tokenizer, ModelTokenizer]:
    with TemporaryDirectory() as folder:
        path = write("llama2", Path(folder))
        return Tokenizer.from_file(str(path)), ModelTokenizer(path)


def ids(*names: str) -> list[int]:
    return [tokenizers()[0].token_to_id(name) for name in names]


def searched(tokens: list[int], stops: list[str], unarmed: int, keep: bool) -> tuple[str, int]:
    """What is shown and how many tokens it takes: a stop string counts with the first token after which it is there."""
    decode = tokenizers()[0].decode
    free = len(decode(tokens[:unarmed]))
    for count in range(unarmed + 1, len(tokens) + 1):
        text = decode(tokens[:count])
        ends = [
            (end, -len(stop)) for stop in stops for end in range(free + 1, len(text) + 1) if text[:end].endswith(stop)
        ]
        if ends:
            end, negative_length = min(ends)
            return text[: end if keep else end + negative_length], count
    return decode(tokens), len(tokens)


def fed(tokens: list[int], stops: list[str], unarmed: int = 0, keep: bool = False) -> tuple[str, int]:
    text = AnswerText(tokenizers()[1].spelling.detokenizer([]), stops, keep_stop=keep)
    shown = ""
    for count, token in enumerate(tokens, 1):
        more, stopped = text.push(token, armed=count > unarmed)
        shown += more
        if stopped:
            return shown, count
    return shown + text.flush(armed=len(tokens) > unarmed)[0], len(tokens)


tokens_of = st.lists(st.sampled_from(NAMES), max_size=12).map(lambda names: ids(*names))
stop_lists = st.lists(st.text("\naéb ", min_size=1, max_size=3), max_size=3)


@given(tokens_of, stop_lists, st.booleans())
def test_stops_at_the_token_that_completes_a_stop_string(tokens: list[int], stops: list[str], keep: bool) -> None:
    assert fed(tokens, stops, keep=keep) == searched(tokens, stops, 0, keep)


whole_characters = st.lists(st.sampled_from(["\n", "a", "é", "b", " a"]), max_size=10)


@given(whole_characters, stop_lists, st.integers(0, 8), st.booleans())
def test_only_ends_in_armed_tokens_count(characters: list[str], stops: list[str], unarmed: int, keep: bool) -> None:
    """Runs that are not broken, so that the text so far is the beginning of any later."""
    spelled = {"\n": ["<0x0A>"], "é": ["<0xC3>", "<0xA9>"], " a": ["▁a"]}
    tokens = ids(*(name for each in characters for name in spelled.get(each, [each])))
    cut = next(
        (count for count in range(unarmed, len(tokens)) if "\ufffd" not in tokenizers()[0].decode(tokens[:count])), 0
    )
    assert fed(tokens, stops, cut, keep) == searched(tokens, stops, cut, keep)


def test_a_line_ends_an_answer_at_its_own_token() -> None:
    """Though the byte token of the line's end is told only with the next."""
    assert fed(ids("a", "<0x0A>", "b"), ["\n"]) == ("a", 2)
    text = AnswerText(tokenizers()[1].spelling.detokenizer([]), [])
    assert [text.push(token) for token in ids("a", "<0x0A>", "b")] == [("a", False), ("", False), ("\nb", False)]


def test_characters_count_what_is_held_back() -> None:
    text = AnswerText(tokenizers()[1].spelling.detokenizer([]), ["ab!"])
    counts = []
    for token in ids("▁a", "<0x0A>", "<0xC3>", "<0xA9>", "</s>", "a", "b"):
        text.push(token)
        counts.append(text.characters)
    assert counts == [1, 2, 2, 3, 3, 4, 5]
    assert text.flush() == ("ab", False)
    assert text.characters == 5


@pytest.mark.timeout(20)
def test_a_long_run_costs_no_more_than_its_length() -> None:
    """Every character is held back and every one is looked at for a stop string once."""
    text = AnswerText(tokenizers()[1].spelling.detokenizer([]), ["b" * 50])
    (line,) = ids("<0x0A>")
    assert {text.push(line) for _ in range(20_000)} == {("", False)}
    assert text.flush() == ("\n" * 20_000, False)
