"""Page memory on a GPU: the same blocks as PageMemory's, moved to and from the host in one piece a unit.

Owns the pool on the device, and how a unit gets from there into a buffer on the host and back.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import InternalError
from headrace.core.layout import KvLayout
from headrace.engine import ops


class DevicePages:
    """See Pages. pool: uint8 [layers, num_blocks, page_bytes] on the device, zeroed at the start.

    All of it is done on the device's default stream, which the engine's thread uses too: what a transfer reads was
    computed by then, and what it wrote is there for the next step, in whatever order the host ran ahead.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        self._layout = layout
        self.pool = torch.zeros(layout.layers, num_blocks, layout.page_bytes, dtype=torch.uint8, device=device)

    @property
    def layout(self) -> KvLayout:
        return self._layout

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        ids, staging = self._unit(blocks, into)
        unit = torch.empty(staging.shape, dtype=torch.uint8, device=self.pool.device)
        ops.pack_pages(self.pool, ids, unit)
        staging.copy_(unit)
        np.frombuffer(into, dtype=np.uint8)[:] = staging.numpy().reshape(-1)

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        ids, staging = self._unit(blocks, data)
        staging.numpy().reshape(-1)[:] = np.frombuffer(data, dtype=np.uint8)
        ops.unpack_pages(staging.to(self.pool.device), self.pool, ids)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to), one after the other: a later pair may read what an earlier one wrote."""
        for source, target in pairs:
            self.pool[:, target].copy_(self.pool[:, source])

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose contents must not reach another sequence, not even masked out (0 x NaN is NaN)."""
        self.pool.index_fill_(1, self._ids(blocks), 0)

    def _unit(self, blocks: Sequence[int], buffer: memoryview) -> tuple[Tensor, Tensor]:
        """The blocks on the device, and memory of the host for them that a GPU copies at full speed."""
        count = self.pool.shape[1]
        if buffer.nbytes != len(blocks) * self._layout.block_bytes or not all(0 <= block < count for block in blocks):
            raise InternalError(
                f"{len(blocks)} blocks of {self._layout.block_bytes} bytes do not fit a buffer of {buffer.nbytes}"
                f" bytes, or one of them is not among the pool's {count}."
            )
        shape = (self._layout.layers, len(blocks), self._layout.page_bytes)
        return self._ids(blocks), torch.empty(shape, dtype=torch.uint8, pin_memory=self.pool.is_cuda)

    def _ids(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(list(blocks), dtype=torch.int64, device=self.pool.device)
