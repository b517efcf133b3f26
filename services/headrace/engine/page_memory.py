"""Page memory: the bytes of all KV pages, and raw access to whole blocks (PagePort).

Owns the memory only. It uses no torch, so that the transfer thread starts no second pool of compute threads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.errors import InternalError
from headrace.core.layout import KvLayout
from headrace_kernels.page_copy import PageCopy
from headrace_kernels.room import ALIGNMENT, aligned


class PageMemory:
    """`shares`: uint8 of shape [rank, layers, num_blocks, page_bytes / ranks], one part of each page a rank: its KV
    heads, which stand together in a page. It starts zeroed, which costs nothing until touched."""

    def __init__(
        self, layout: KvLayout, num_blocks: int, *, ranks: int = 1, memory: npt.NDArray[np.uint8] | None = None
    ) -> None:
        """memory: zeroed bytes to use instead of new ones, as many as num_blocks blocks have."""
        self._layout = layout
        size = num_blocks * layout.block_bytes
        memory = aligned(np.zeros(size + ALIGNMENT, dtype=np.uint8))[:size] if memory is None else memory
        self.shares: npt.NDArray[np.uint8] = memory.reshape(
            ranks, layout.layers, num_blocks, layout.page_bytes // ranks
        )
        self._copy = PageCopy(self.bytes)

    @property
    def layout(self) -> KvLayout:
        return self._layout

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """Rank 0's share, of one rank all: [layers, num_blocks, page_bytes / ranks]."""
        first: npt.NDArray[np.uint8] = self.shares[0]
        return first

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        self._check(blocks, into)
        if len(self.shares) == 1:
            self._copy.gather(blocks, np.frombuffer(into, np.uint8))
            return
        for share, part in zip(self.shares, self._parts(blocks, into), strict=True):
            np.take(share, np.asarray(blocks, dtype=np.intp), axis=1, out=part, mode="clip")

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        self._check(blocks, data)
        if len(self.shares) == 1:
            self._copy.scatter(blocks, np.frombuffer(data, np.uint8))
            return
        for share, part in zip(self.shares, self._parts(blocks, data), strict=True):
            share[:, np.asarray(blocks, dtype=np.intp)] = part

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to), one after the other: a later pair may read what an earlier one wrote."""
        for source, target in pairs:
            self.shares[:, :, target] = self.shares[:, :, source]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose contents must not reach another sequence, not even masked out (0 x NaN is NaN)."""
        self.shares[:, :, np.asarray(blocks, dtype=np.intp)] = 0

    def _check(self, blocks: Sequence[int], buffer: memoryview) -> None:
        count = self.shares.shape[2]
        inside = min(blocks, default=0) >= 0 and max(blocks, default=-1) < count
        if buffer.nbytes != len(blocks) * self._layout.block_bytes or not inside:
            raise InternalError(
                f"{len(blocks)} blocks of {self._layout.block_bytes} bytes do not fit a buffer of {buffer.nbytes}"
                f" bytes, or one of them is not among the pool's {count}."
            )

    def _parts(self, blocks: Sequence[int], buffer: memoryview) -> npt.NDArray[np.uint8]:
        """The buffer as [rank, layer, block, page_bytes / ranks], a view."""
        shape = (self._layout.layers, len(blocks), len(self.shares), -1)
        return np.frombuffer(buffer, dtype=np.uint8).reshape(shape).transpose(2, 0, 1, 3)
