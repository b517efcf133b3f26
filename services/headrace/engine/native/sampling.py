"""Row kernels in native code, where it was built and the processor can run it.

Owns the translation of draws into what C++ reads.
"""

import math

import numpy as np
import numpy.typing as npt

from headrace.engine.logit_row import UNIT, Ids, Logits
from headrace.engine.row_kernels import NumpyRows, RowKernels
from headrace.engine.runner import Draw
from headrace_kernels import native, native_sampling


class NativeRows:
    """See RowKernels."""

    def best(self, logits: Logits) -> tuple[Ids, npt.NDArray[np.bool_]]:
        return native_sampling.best(logits)

    def draw(self, logits: Logits, best: Ids, draws: dict[int, Draw]) -> list[int]:
        requests = [_request(row, int(best[row]), one) for row, one in draws.items()]
        return native_sampling.draw(logits, np.array(requests, dtype=native_sampling.DRAW_REQUEST))

    def standing(self, row: Logits, token: int, count: int) -> tuple[float, int, Ids]:
        units, before, top = native_sampling.standing(row, token, min(count, len(row)))
        return units / UNIT, before, top


def pick_rows() -> RowKernels:
    """The native ones if they can run here, else numpy's."""
    return NumpyRows() if native.instruction_set() is None else NativeRows()


def _request(row: int, best: int, one: Draw) -> tuple[float, ...]:
    sampling = one.sampling
    log_min_p = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
    where = row, best, sampling.seed or 0, one.choice, one.position
    return *where, sampling.top_k, sampling.temperature, sampling.top_p, log_min_p
