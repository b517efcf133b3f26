"""A Model that the native kernels run.

Owns the arrays that a step hands to C++. Its bits depend on a sequence's own tokens alone, whatever it is computed
with.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.engine.logit_row import Logits
from headrace.engine.native.compile import Compiled
from headrace.engine.runner import Span
from headrace_kernels.native import Program, Step


class NativeDecoder:
    """See Model. threads: that compute together."""

    def __init__(self, compiled: Compiled, block_tokens: int, threads: int) -> None:
        self._compiled = compiled
        self._block_tokens = block_tokens
        self._threads = threads
        self._computed = 0

    @property
    def programs(self) -> tuple[Program, ...]:
        """All that a step runs."""
        return self._compiled.layers, self._compiled.head

    def forward(self, spans: Sequence[Span]) -> None:
        arrays = step_arrays(spans, self._block_tokens)
        sequences, width = arrays[-1].shape
        self._computed = len(arrays[0])
        assert self._computed <= len(self._compiled.hidden), "C++ writes as many rows as it is told"
        step = Step(*_addresses(arrays), None, None, self._computed, sequences, width, 0)
        self._compiled.layers.run(step, self._threads)

    def logits(self, rows: Sequence[int]) -> Logits:
        assert 0 <= min(rows) <= max(rows) < self._computed, "C++ reads the rows that it is told"
        assert len(rows) <= len(self._compiled.hidden), "it norms as many at once as there is room for"
        logits = np.empty((len(rows), self._compiled.vocabulary), dtype=np.float32)
        picked = np.array(rows, dtype=np.int32)
        step = Step(head_rows=picked.ctypes.data, logits=logits.ctypes.data, head_count=len(rows))
        self._compiled.head.run(step, self._threads)
        return logits


def step_arrays(spans: Sequence[Span], block_tokens: int) -> tuple[npt.NDArray[np.integer], ...]:
    """ids, positions, slots [token]; first row, rows [sequence]; table [sequence, blocks], as Step wants them."""
    counts = np.array([span.count for span in spans], dtype=np.int32)
    starts = np.array([span.start for span in spans], dtype=np.int32)
    table = np.zeros((len(spans), max(len(span.blocks) for span in spans)), dtype=np.int32)
    for row, span in enumerate(spans):
        table[row, : len(span.blocks)] = span.blocks
    ids = np.array([token for span in spans for token in span.tokens[span.start : span.start + span.count]], np.int32)
    first = np.cumsum(counts, dtype=np.int32) - counts
    sequence = np.repeat(np.arange(len(spans)), counts)
    positions = np.arange(len(ids), dtype=np.int32) + (starts - first)[sequence]
    blocks = table[sequence, positions // block_tokens].astype(np.int64)
    return ids, positions, blocks * block_tokens + positions % block_tokens, first, counts, table


def _addresses(arrays: Sequence[npt.NDArray[np.integer]]) -> list[int]:
    return [array.ctypes.data for array in arrays]
