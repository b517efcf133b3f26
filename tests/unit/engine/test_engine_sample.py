"""Sampling: the generator's published vectors, filters against their definition, noise that depends on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.sampling import SamplingParams
from headrace.engine.history import TokenHistory
from headrace.engine.philox import philox
from headrace.engine.runner import Draw
from headrace.engine.sample import draw_token, gumbel, sample, survivors


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # Random123's known-answer file kat_vectors, philox4x32 with 10 rounds.
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter: str, key: str, words: str) -> None:
    first, second, third, fourth = (np.array([int(word, 16)], dtype=np.uint64) for word in counter.split())
    low, high = (int(word, 16) for word in key.split())
    assert philox((first, second, third, fourth), (low, high)).tolist() == [[int(word, 16) for word in words.split()]]


def _draw(position: int = 0, choice: int = 0, **sampling: object) -> Draw:
    return Draw(SamplingParams(**{"seed": 1, **sampling}), choice, TokenHistory([0] * (position + 1), 1))  # type: ignore[arg-type]


def _logits(seed: int, size: int = 1000) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def _expected(scaled: np.ndarray, top_k: int, top_p: float) -> list[int]:
    """The definition, plainly: sort, cut to k, renormalise, keep the shortest head that reaches p."""
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))[: top_k or None]
    weights = np.exp(scaled[order] - scaled.max())
    reached = np.cumsum(weights / weights.sum()) >= top_p
    return sorted(order[: int(reached.argmax()) + 1] if top_p < 1 else order)


@given(st.integers(0, 50), st.sampled_from([0, 1, 2, 7, 600, 5000]), st.sampled_from([0.01, 0.3, 0.9, 0.999, 1.0]))
def test_filters_keep_what_their_definition_keeps(seed: int, top_k: int, top_p: float) -> None:
    scaled = _logits(seed).astype(np.float64)
    if top_k == 0 and top_p == 1.0:
        return
    assert survivors(scaled, SamplingParams(top_k=top_k, top_p=top_p)).tolist() == _expected(scaled, top_k, top_p)


def test_equal_logits_survive_in_order_of_id() -> None:
    assert survivors(np.zeros(10), SamplingParams(top_k=3)).tolist() == [0, 1, 2]


def test_a_wide_nucleus_is_found_too() -> None:
    assert len(survivors(np.zeros(2000), SamplingParams(top_p=0.75))) == 1500


def test_leaving_out_hopeless_tokens_changes_no_draw() -> None:
    logits = (_logits(3, 4000) * 8).astype(np.float32)
    scaled = logits.astype(np.float64)
    assert len(survivors(scaled, SamplingParams())) < len(logits)
    for position in range(200):
        scores = scaled + gumbel(1, 0, position, np.arange(len(logits)))
        assert draw_token(logits, _draw(position)) == int(scores.argmax())


def test_noise_of_a_token_depends_on_nothing_but_its_coordinates() -> None:
    everyone = gumbel(5, 1, 9, np.arange(1000))
    some = np.array([0, 3, 4, 5, 11, 998])
    assert gumbel(5, 1, 9, some).tolist() == everyone[some].tolist()
    for other in (gumbel(6, 1, 9, some), gumbel(5, 2, 9, some), gumbel(5, 1, 8, some), gumbel(5 + 2**32, 1, 9, some)):
        assert not np.isclose(other, everyone[some]).any()


def test_negative_seeds_are_seeds() -> None:
    assert not np.isclose(gumbel(-1, 0, 0, np.arange(8)), gumbel(1, 0, 0, np.arange(8))).any()


def test_a_row_draws_the_same_in_any_batch() -> None:
    rows = np.stack([_logits(seed) for seed in range(6)])
    draws = [_draw(position, temperature=0.5 + position / 4, top_p=0.95) for position in range(6)]
    together = sample(rows, draws)
    assert together == [sample(rows[index : index + 1], [draws[index]])[0] for index in range(6)]


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.08, 0.02], dtype=np.float32))
    count = 8_000
    seen = np.bincount([draw_token(logits, _draw(position)) for position in range(count)], minlength=5) / count
    spread = np.sqrt(np.exp(logits) * (1 - np.exp(logits)) / count)
    assert (np.abs(seen - np.exp(logits)) < 4 * spread).all()


def test_temperature_sharpens() -> None:
    logits = _logits(1, 50)
    hot, cold = (
        sum(draw_token(logits, _draw(position, temperature=heat)) == logits.argmax() for position in range(300))
        for heat in (2.0, 0.1)
    )
    assert hot < 150 < cold


def test_greedy_takes_the_best_and_the_first_of_equals() -> None:
    assert draw_token(np.array([1, 5, 5, 2], dtype=np.float32), _draw(temperature=0.0)) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_draw_nothing(bad: float) -> None:
    rows = np.stack([_logits(0), _logits(1)])
    rows[0, 17] = bad
    first, second = sample(rows, [_draw(), _draw()])
    assert first is None
    assert second is not None
