"""The Model border: logits of whichever rows, as often as wanted, in memory of their own, from torch and from C++."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixtures.paged_model import PagedModel
from fixtures.tiny_model import CONFIG, tiny_files

from headrace.engine.model import Model
from headrace.engine.runner import Span
from headrace_kernels import native

NATIVE = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")
TOKENS = [3 + (7 * index) % 290 for index in range(40)]
STEP = [Span(TOKENS, 4, 1, [0], None), Span(TOKENS[::-1], 0, 21, [1, 2], None)]


@pytest.fixture(params=["torch", pytest.param("native", marks=NATIVE)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Model]:
    files = tiny_files(tmp_path)
    return lambda: PagedModel(files, native=request.param == "native", length=64).model


@pytest.fixture
def model(make: Callable[[], Model]) -> Model:
    model = make()
    model.forward([Span(TOKENS, 0, 4, [0], None)])
    model.forward(STEP)
    return model


def test_any_rows_in_any_order(model: Model) -> None:
    every = model.logits(range(22))
    assert every.shape == (22, CONFIG.vocab_size)
    assert every.dtype == np.float32
    assert np.isfinite(every).all()
    for rows in ([0], [21], [3, 0, 3], [21, 7, 1, 20, 2, 11, 5, 4, 3]):
        np.testing.assert_allclose(model.logits(rows), every[rows], rtol=1e-5, atol=1e-5)


def test_logits_are_nobody_elses(model: Model) -> None:
    first = model.logits([1, 2])
    kept = first.copy()
    second = model.logits([2, 1])
    second.fill(np.nan)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(model.logits([1, 2]), kept)


def test_states_stay_until_the_next_step(model: Model, make: Callable[[], Model]) -> None:
    before = model.logits([0, 5])
    model.forward([Span(TOKENS, 5, 1, [0], None)])
    after = model.logits([0])
    assert not np.allclose(after[0], before[0])
    again = make()
    again.forward([Span(TOKENS, 0, 6, [3], None)])
    np.testing.assert_allclose(again.logits([5]), after, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [[22], [-1], [0, 22]], ids=str)
def test_rows_that_were_not_computed_are_refused(tmp_path: Path, rows: list[int]) -> None:
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    model = PagedModel(tiny_files(tmp_path), native=True, length=64).model
    model.forward([Span(TOKENS, 0, 4, [0], None)])
    model.forward(STEP)
    with pytest.raises(AssertionError):
        model.logits(rows)
