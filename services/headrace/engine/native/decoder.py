"""A model that the native kernels run: steps in, states and logits out, as a Decoder does with torch.

Owns the arrays that a step hands to C++. Its bits depend on a sequence's own tokens alone, whatever it is computed
with.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.engine.batch import Batch
from headrace.engine.native.compile import Compiled
from headrace.engine.ops import PagedKv
from headrace.engine.runner import Span
from headrace_kernels.native import Program, Step


class NativeDecoder:
    """See Model. threads: that compute together."""

    def __init__(self, compiled: Compiled, block_tokens: int, threads: int) -> None:
        self._compiled = compiled
        self._block_tokens = block_tokens
        self._threads = threads

    @property
    def programs(self) -> tuple[Program, ...]:
        """All that a step runs."""
        return self._compiled.layers, self._compiled.head

    def forward(self, batch: Batch, kv: PagedKv) -> Tensor:
        """The states are good until the next call."""
        arrays = step_arrays(batch.spans, self._block_tokens)
        sequences, width = arrays[-1].shape
        step = Step(*_addresses(arrays), None, None, batch.tokens, sequences, width, 0)
        self._compiled.layers.run(step, self._threads)
        return self._compiled.hidden[: batch.rows]

    def logits(self, hidden: Tensor) -> Tensor:
        self._compiled.rows[: len(hidden)] = hidden
        logits = torch.empty(len(hidden), self._compiled.vocabulary)
        rows = np.arange(len(hidden), dtype=np.int32)
        step = Step(head_rows=rows.ctypes.data, logits=logits.data_ptr(), head_count=len(rows))
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
