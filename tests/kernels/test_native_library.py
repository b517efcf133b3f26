"""Without a build of csrc there is no instruction set, and whoever computes all the same is told what to do."""

import numpy as np
import pytest

from headrace_kernels import native, native_sampling
from headrace_kernels.native import Format, Packed


@pytest.fixture(autouse=True)
def _not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native, native_sampling):
        monkeypatch.setattr(module, "built", lambda: None)
        monkeypatch.setattr(module, "_library", module._library.__wrapped__)


def test_there_is_no_instruction_set() -> None:
    assert native.instruction_set() is None
    assert not native.takes_heads_of(64)
    assert not native.takes_rows_of(64, Format.INT8)
    with pytest.raises(ValueError, match="cannot use avx2"):
        native.choose("avx2")


def test_a_missing_library_is_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="Build them with"):
        Packed(Format.F32, 4, 32)
    with pytest.raises(RuntimeError, match="Build them with"):
        native_sampling.best(np.zeros((2, 8), dtype=np.float32))
