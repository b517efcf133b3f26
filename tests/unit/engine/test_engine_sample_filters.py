"""Temperature, top_k, top_p and min_p: survivors against their definition, draws against their law."""

import numpy as np
import pytest
from fixtures import sampling_oracle as oracle
from fixtures.sampling import assert_follows, draw_of, tokens
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.sampling import SamplingParams
from headrace.engine.noise import NOISE_RANGE
from headrace.engine.survivors import filtered

DRAWS = 2000
LOGITS = [1.0, 2.5, 0.25, 2.5, -1.0, 0.0, 1.75, -4.0]


def _logits(seed: int, size: int = 1000, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def _survivors(row: np.ndarray, **sampling: float) -> list[int]:
    return filtered(row, float(row.max()), SamplingParams(**sampling))[0].tolist()  # type: ignore[arg-type]


def _expected(row: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """The definition, plainly: sort, cut to k and to min_p, renormalise, keep the shortest head that reaches p."""
    weights = np.exp(row.astype(np.float64) - row.max())
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))[: top_k or None]
    order = [token for token in order if weights[token] >= min_p]
    if top_p < 1.0:
        reached = np.cumsum(weights[order] / weights[order].sum())
        assume(np.abs(reached - top_p).min() > 1e-6)
        order = order[: int((reached >= top_p).argmax()) + 1]
    return sorted(order)


@given(
    st.integers(0, 50),
    st.sampled_from([0.3, 3.0]),
    st.sampled_from([0, 1, 2, 7, 60, 600, 1000, 5000]),
    st.sampled_from([0.01, 0.3, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 1e-9, 0.001, 0.2, 1.0]),
)
def test_filters_keep_what_their_definition_keeps(
    seed: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = _logits(seed, spread=spread)
    expected = _expected(row, top_k, top_p, min_p)
    near = set(np.flatnonzero(row >= row.max() - NOISE_RANGE).tolist())
    found = _survivors(row, top_k=top_k, top_p=top_p, min_p=min_p)
    assert found == expected if top_p < 1.0 else set(expected) & near <= set(found) <= set(expected)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("top_k", [1, 2, 3, 16])
def test_top_k_of_small_vocabularies(size: int, top_k: int) -> None:
    row = _logits(size, size)
    assert _survivors(row, top_k=top_k) == _expected(row, top_k)


def test_equal_logits_survive_in_order_of_id() -> None:
    row = np.zeros(100, dtype=np.float32)
    assert _survivors(row, top_k=3) == [0, 1, 2]
    assert _survivors(row, top_p=0.5) == list(range(50))
    assert _survivors(row, top_k=8, top_p=0.5) == [0, 1, 2, 3]
    assert _survivors(row, min_p=1.0) == list(range(100))


def test_both_zeros_are_equal_logits() -> None:
    assert _survivors(np.array([-0.0, 0.0, -0.0, 0.0], dtype=np.float32), top_k=2) == [0, 1]


def test_a_wide_nucleus_is_found_too() -> None:
    assert len(_survivors(np.zeros(2000, dtype=np.float32), top_p=0.75)) == 1500


@pytest.mark.parametrize("top_p", [1e-9, 1 - 2**-53])
def test_extreme_nuclei(top_p: float) -> None:
    row = _logits(5)
    kept = _survivors(row, top_p=top_p)
    assert kept == [int(row.argmax())] if top_p < 0.5 else len(kept) > 990


def test_masked_tokens_never_survive() -> None:
    row = np.full(50, -np.inf, dtype=np.float32)
    row[[7, 30]] = [-3.0, -2.0]
    for sampling in ({}, {"top_k": 5}, {"top_p": 0.9999}, {"min_p": 1e-30}, {"top_k": 5, "top_p": 0.9999}):
        assert _survivors(row, **sampling) == [7, 30]


def test_leaving_out_hopeless_tokens_changes_no_draw() -> None:
    row = _logits(3, 1000, spread=24.0)
    assert len(_survivors(row)) < len(row) / 2
    sampling = SamplingParams(seed=1)
    positions = [oracle.Known((0,), (0,) * position) for position in range(20)]
    expected = [
        max(range(len(row)), key=lambda one: row[one] + oracle.gumbel(1, 0, len(known.generated), one))
        for known in positions
    ]
    assert tokens([row] * 20, [draw_of(sampling, known) for known in positions]) == expected


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_p": 0.95, "temperature": 1.5},
        {"min_p": 0.2},
        {"min_p": 0.3, "temperature": 2.0},
        {"top_k": 5, "top_p": 0.8},
        {"top_k": 6, "top_p": 0.9, "min_p": 0.1, "temperature": 1.3},
    ],
)
def test_draws_follow_the_law(sampling: dict[str, float]) -> None:
    params = [SamplingParams(seed=seed, **sampling) for seed in range(DRAWS)]  # type: ignore[arg-type]
    counts = np.bincount(tokens([LOGITS] * DRAWS, [draw_of(one) for one in params]), minlength=len(LOGITS))
    assert_follows(counts, oracle.law(LOGITS, params[0]))


@pytest.mark.parametrize("spread", ["positions", "choices"])
def test_draws_of_one_seed_follow_the_law_over_positions_and_choices(spread: str) -> None:
    sampling = SamplingParams(seed=77)
    known = [
        oracle.Known((0,), (0,) * index) if spread == "positions" else oracle.Known((0,), (), index)
        for index in range(1000)
    ]
    drawn = tokens([LOGITS[:6]] * len(known), [draw_of(sampling, one) for one in known])
    assert_follows(np.bincount(drawn, minlength=6), oracle.law(LOGITS[:6], sampling))


def test_draws_of_many_tokens_follow_the_law() -> None:
    """Past the size from which bounds are looked at first: three groups of equal tokens."""
    logits = np.repeat(np.log([1.0, 2.0, 5.0]), 2000)
    drawn = tokens([logits] * 600, [draw_of(SamplingParams(seed=seed)) for seed in range(600)])
    assert_follows(np.bincount(np.array(drawn) // 2000, minlength=3), [1 / 8, 2 / 8, 5 / 8])
    assert len(set(drawn)) > 400


def test_greedy_takes_the_best_and_the_first_of_equals() -> None:
    assert tokens([[1, 5, 5, 2]], [draw_of(SamplingParams(temperature=0.0))]) == [1]


def test_greedy_ignores_the_filters() -> None:
    greedy = SamplingParams(temperature=0.0, top_k=2, top_p=0.1, min_p=0.5, seed=3)
    assert tokens([LOGITS], [draw_of(greedy)]) == [1]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30, 1e-6])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}])
def test_the_coldest_temperatures_are_greedy(temperature: float, sampling: dict[str, float]) -> None:
    params = SamplingParams(temperature=temperature, seed=4, **sampling)  # type: ignore[arg-type]
    assert tokens([[1, 2, 5, 3]], [draw_of(params)]) == [2]


@pytest.mark.parametrize(
    ("sampling", "drawn"),
    [
        # What version 1 drew from these logits: 10 positions of choice 0, then of choice 1. Seeded answers stay.
        ({}, [219, 12, 119, 278, 256, 219, 216, 249, 64, 93, 38, 219, 134, 267, 49, 249, 101, 293, 138, 182]),
        (
            {"top_k": 20},
            [219, 12, 171, 49, 256, 219, 267, 182, 267, 182, 23, 219, 134, 267, 49, 171, 182, 293, 182, 182],
        ),
        (
            {"top_p": 0.8, "temperature": 1.3},
            [219, 12, 119, 278, 256, 219, 16, 249, 64, 93, 38, 219, 134, 267, 49, 249, 101, 293, 138, 182],
        ),
    ],
)
def test_seeded_draws_are_what_they_always_were(sampling: dict[str, float], drawn: list[int]) -> None:
    logits = np.sin(np.arange(300) * 1.7) * 4
    known = [oracle.Known((0,), (0,) * position, choice) for choice in (0, 1) for position in range(10)]
    params = SamplingParams(seed=11, **sampling)  # type: ignore[arg-type]
    assert tokens([logits] * 20, [draw_of(params, one) for one in known]) == drawn
