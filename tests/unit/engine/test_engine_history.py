"""Counts of a sequence's tokens: right at every length, at the price of the new tokens alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.history import TokenHistory


def _counts(history: TokenHistory) -> dict[int, int]:
    ids, counts = history.counts()
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def _expected(tokens: list[int], prompt_len: int) -> dict[int, int]:
    generated = Counter(tokens[prompt_len:])
    return {token: generated[token] for token in tokens}


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.data(),
    st.lists(st.lists(st.integers(0, 60), max_size=30), max_size=6),
)
def test_counts_follow_the_tokens(start: list[int], data: st.DataObject, more: list[list[int]]) -> None:
    prompt_len = data.draw(st.integers(1, len(start)))
    tokens = list(start)
    history = TokenHistory(tokens, prompt_len)
    assert _counts(history) == _expected(tokens, prompt_len)
    for new in more:
        tokens.extend(new)
        assert _counts(history) == _expected(tokens, prompt_len)
        assert history.generated == len(tokens) - prompt_len


class _Watched(list[int]):
    """A list that tells how many of its elements were read."""

    read = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self):  # type: ignore[no-untyped-def]
        for token in super().__iter__():
            self.read += 1
            yield token


def test_a_step_costs_its_new_tokens() -> None:
    tokens = _Watched(range(5000))
    history = TokenHistory(tokens, 4000)
    history.counts()
    tokens.read = 0
    for step in range(100):
        tokens.append(step)
        history.counts()
    assert tokens.read == 100


@pytest.mark.parametrize(("count", "tail"), [(0, []), (1, [5]), (2, [4, 5]), (9, [3, 4, 5])])
def test_the_tail_holds_generated_tokens_alone(count: int, tail: list[int]) -> None:
    assert TokenHistory([1, 2, 3, 4, 5], 2).tail(count) == tail
