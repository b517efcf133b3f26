"""Captured decode: a decode step is recorded once for each of a few batch sizes, and replayed for every batch.

Owns which sizes there are, which batches are replayed, and the order of recording. It knows no CUDA: a Graph does.
"""

from collections.abc import Callable
from typing import Protocol

import structlog
import torch
from torch import Tensor

from headrace.core.blocks import blocks_for
from headrace.engine.batch import Batch
from headrace.engine.ops import PagedKv
from headrace.engine.static_step import StaticStep, StepBuffers
from headrace.engine.torch_decoder import TorchDecoder


class Graph(Protocol):
    """A function's work on the device, recorded to be done again. capture -> replay, replay ...

    The function may do nothing whose course depends on the host: it reads no tensor there, and what differs between
    replays reaches it through tensors that were there at the capture.
    """

    def capture(self, function: Callable[[], Tensor]) -> None:
        """Record what `function` does. It may be called several times, before and while recording."""
        ...

    def replay(self) -> Tensor:
        """Do it again. Returns what the function returned: the same memory every time."""
        ...


class CapturedDecode:
    """See TensorModel: another's steps, with those of one token a sequence replayed. Made before the engine serves."""

    def __init__(
        self, model: TorchDecoder, kv: PagedKv, *, sequences: int, context: int, make_graph: Callable[[], Graph]
    ) -> None:
        """sequences: that a captured step has at most. context: tokens of each at most. kv: the pages of every step.

        Captures all sizes, the largest first, so that the smaller find room in the memory that it took.
        """
        self._model = model
        self._kv = kv
        pages = blocks_for(context, kv.layout.block_tokens)
        self._buffers = StepBuffers(sequences, pages, kv.layout.block_tokens, kv.device)
        self._graphs: dict[int, Graph] = {}
        with torch.inference_mode():
            for size in reversed(capture_sizes(sequences)):
                self._graphs[size] = make_graph()
                self._graphs[size].capture(self._forward_of(self._buffers.step(size)))
        structlog.get_logger().info("engine.captured", sizes=sorted(self._graphs))

    @property
    def buffers(self) -> StepBuffers:
        return self._buffers

    def forward(self, batch: Batch, kv: PagedKv) -> Tensor:
        """`kv` must be the one that was captured. The states are good until the next call."""
        assert kv is self._kv
        size = self._size_for(batch)
        if size is None:
            return self._model.forward(batch, kv)
        self._buffers.fill(batch.spans)
        return self._graphs[size].replay()[: batch.rows]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def _forward_of(self, step: StaticStep) -> Callable[[], Tensor]:
        return lambda: self._model.forward(step, self._kv)

    def _size_for(self, batch: Batch) -> int | None:
        """The smallest captured size that holds `batch`; None for one that is not a decode step, or too large."""
        if any(span.count != 1 or len(span.blocks) > self._buffers.pages for span in batch.spans):
            return None
        return min((size for size in self._graphs if size >= len(batch.spans)), default=None)


def capture_sizes(sequences: int) -> list[int]:
    """1, 2, 4, 8 ... and `sequences`, ascending."""
    powers = [1 << power for power in range(sequences.bit_length())]
    return sorted({*(power for power in powers if power <= sequences), sequences})
