"""Row kernels: the native ones give what numpy gives, the specification, token by token and bit by bit."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from fixtures.sampling import draw_of
from fixtures.sampling_oracle import Known

from headrace.core.sampling import SamplingParams
from headrace.engine.logit_row import COLDEST
from headrace.engine.native.sampling import NativeRows
from headrace.engine.row_kernels import NumpyRows, RowKernels
from headrace.engine.runner import Draw
from headrace_kernels import native

NUMPY, NATIVE = NumpyRows(), NativeRows()
NEEDS_NATIVE = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")
EACH = pytest.mark.parametrize("kernels", [NUMPY, pytest.param(NATIVE, marks=NEEDS_NATIVE)], ids=["numpy", "native"])
SIZES = (1, 2, 7, 8, 9, 63, 64, 65, 1023, 1025, 5003)
FILTERS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"temperature": 1e-6},
    {"temperature": 5e-324},
    {"top_k": 1},
    {"top_k": 17},
    {"top_k": 400, "temperature": 1.7},
    {"top_k": 10**6},
    {"top_p": 1e-9},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_p": 0.999, "temperature": 2.0},
    {"top_p": 1 - 2**-53},
    {"min_p": 1.0},
    {"min_p": 0.05},
    {"min_p": 1e-9, "temperature": 1.5},
    {"min_p": 5e-324},
    {"top_k": 50, "top_p": 0.9},
    {"top_p": 0.95, "min_p": 0.01, "temperature": 1.3},
    {"top_k": 60, "top_p": 0.95, "min_p": 0.001, "temperature": 0.8},
)


def rows_of(size: int, count: int, seed: int) -> npt.NDArray[np.float32]:
    """Flat, peaked, far from zero, full of ties, masked: a row in turn of each."""
    random = np.random.default_rng(seed)
    spread = random.choice([0.0, 0.3, 3.0, 30.0], count)[:, None]
    rows = (random.standard_normal((count, size)) * spread).astype(np.float32)
    rows[1::5] += np.float32(1000.0)
    rows[2::5] = np.round(rows[2::5])
    rows[3::5][random.random(rows[3::5].shape) < 0.5] = -np.inf
    rows[4::5] *= np.float32(-1e30)
    rows[np.arange(count), random.integers(0, size, count)] += np.float32(2.0)
    lost = np.isneginf(rows).all(axis=1)
    rows[lost, 0] = 0.0
    return rows


def draws_of(count: int, seed: int) -> dict[int, Draw]:
    random = np.random.default_rng(seed)
    draws = {}
    for row in range(count):
        known = Known((0,), (0,) * int(random.integers(0, 40)), int(random.integers(0, 9)))
        noise = int(random.integers(-(2**63), 2**63 - 1))
        draws[row] = draw_of(SamplingParams(seed=noise, **FILTERS[row % len(FILTERS)]), known)  # type: ignore[arg-type]
    return draws


@NEEDS_NATIVE
@pytest.mark.parametrize("size", SIZES)
def test_draws_are_the_same(size: int) -> None:
    count = 20 * len(FILTERS)
    rows, draws = rows_of(size, count, size), draws_of(count, size)
    best, _ = NUMPY.best(rows)
    assert NATIVE.draw(rows, best, draws) == NUMPY.draw(rows, best, draws)


@NEEDS_NATIVE
def test_draws_of_a_large_vocabulary_are_the_same() -> None:
    rows, draws = rows_of(49_152, 4 * len(FILTERS), 1), draws_of(4 * len(FILTERS), 2)
    best, _ = NUMPY.best(rows)
    assert NATIVE.draw(rows, best, draws) == NUMPY.draw(rows, best, draws)


@EACH
def test_a_draw_does_not_depend_on_other_rows(kernels: RowKernels) -> None:
    rows, draws = rows_of(1025, 63, 5), draws_of(63, 6)
    best, _ = kernels.best(rows)
    together = kernels.draw(rows, best, draws)
    for row, one in draws.items():
        assert kernels.draw(rows[row : row + 1], best[row : row + 1], {0: one}) == [together[row]]


@EACH
@pytest.mark.parametrize("size", SIZES)
def test_the_best_and_what_is_finite(kernels: RowKernels, size: int) -> None:
    rows = rows_of(size, 100, size)
    assert kernels.best(rows)[0].tolist() == rows.argmax(axis=1).tolist()
    rows[np.isneginf(rows)] = 0.0
    random = np.random.default_rng(0)
    broken = random.random(100) < 0.5
    for row in np.flatnonzero(broken):
        rows[row, random.integers(0, size)] = random.choice([np.nan, -np.nan, np.inf, -np.inf])
    best, finite = kernels.best(rows)
    assert finite.tolist() == (~broken).tolist()
    assert best[finite].tolist() == rows.argmax(axis=1)[finite].tolist()


@EACH
def test_both_zeros_are_equally_good(kernels: RowKernels) -> None:
    rows = np.array([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]], dtype=np.float32)
    assert kernels.best(rows)[0].tolist() == [1, 1]
    _, before, top = kernels.standing(rows[0], 2, 3)
    assert (before, top.tolist()) == (1, [1, 2, 0])


@NEEDS_NATIVE
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_standings_are_the_same_to_the_bit(size: int, count: int) -> None:
    random = np.random.default_rng(size)
    rows = rows_of(size, 50, size)
    rows[np.isneginf(rows)] = -50.0
    for row in rows:
        token = int(random.integers(0, size))
        mass, before, top = NATIVE.standing(row, token, count)
        expected = NUMPY.standing(row, token, count)
        assert (mass, before, top.tolist()) == (expected[0], expected[1], expected[2].tolist())


@EACH
def test_the_best_are_as_many_as_are_not_forbidden(kernels: RowKernels) -> None:
    row = np.full(100, -np.inf, dtype=np.float32)
    row[[7, 50, 3]] = [2.0, 3.0, 2.0]
    mass, before, top = kernels.standing(row, 7, 20)
    assert (before, top.tolist()) == (2, [50, 3, 7])
    assert mass == pytest.approx(1 + 2 * math.exp(-1), rel=1e-7)
    assert kernels.standing(row[:8], 3, 1)[2].tolist() == [3]


@pytest.mark.parametrize("filters", [{}, {"min_p": 0.01}, {"top_p": 0.999}, {"top_k": 2}, {"top_k": 3, "top_p": 0.9}])
@EACH
def test_below_the_coldest_temperature_all_are_alike(kernels: RowKernels, filters: dict[str, float]) -> None:
    """Logits so close that even the coldest leaves more than one to draw."""
    rows = np.tile(np.array([-1e-31, 0.0, -3e-31], dtype=np.float32), (200, 1))
    best = np.ones(200, dtype=np.int64)
    drawn = {}
    for temperature in (COLDEST, 1e-40, 5e-324):
        one = [SamplingParams(seed=seed, temperature=temperature, **filters) for seed in range(200)]  # type: ignore[arg-type]
        draws = {row: draw_of(sampling, Known((0,), (), 0)) for row, sampling in enumerate(one)}
        drawn[temperature] = kernels.draw(rows, best, draws)
    assert drawn[1e-40] == drawn[5e-324] == drawn[COLDEST]
    assert len(set(drawn[COLDEST])) > 1


@NEEDS_NATIVE
def test_rows_of_a_wider_array_are_read_where_they_are() -> None:
    wide = rows_of(64, 42, 3)
    draws = draws_of(42, 4)
    narrow = wide[:, :40]
    narrow[np.isneginf(narrow).all(axis=1), 0] = 0.0
    best, _ = NATIVE.best(narrow)
    assert best.tolist() == narrow.argmax(axis=1).tolist()
    assert NATIVE.draw(narrow, best, draws) == NUMPY.draw(narrow, best, draws)


@EACH
def test_the_mass_is_that_of_exponentials(kernels: RowKernels) -> None:
    for row in rows_of(5003, 20, 9):
        finite = row[np.isfinite(row)]
        exact = np.exp(finite.astype(np.float64) - finite.max()).sum()
        assert kernels.standing(finite, 0, 0)[0] == pytest.approx(exact, rel=3e-7, abs=1e-7)
