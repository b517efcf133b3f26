"""What calls native kernels that were not built is told so."""

from collections.abc import Callable

import numpy as np
import pytest

from headrace_kernels import native, native_sampling
from headrace_kernels.native import Format, Packed

ROW = np.zeros((1, 8), dtype=np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Packed(Format.F32, 8, 8),
        lambda: native_sampling.best(ROW),
        lambda: native_sampling.draw(ROW, np.zeros(1, native_sampling.DRAW_REQUEST)),
        lambda: native_sampling.standing(ROW[0], 0, 1),
    ],
    ids=["pack", "best", "draw", "standing"],
)
def test_missing_kernels_are_named_with_a_remedy(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native, native_sampling):
        # As in a process that has not opened the library yet.
        monkeypatch.setattr(module, "_library", module._library.__wrapped__)
    monkeypatch.setattr(native, "_path", lambda: None)
    with pytest.raises(ValueError, match=r"not built: install .* anew"):
        call()
