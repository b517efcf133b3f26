"""Page memory: the bytes of all KV pages, and raw access to whole blocks (PagePort).

Owns the memory only. It uses numpy, so that the transfer thread starts no second pool of compute threads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.errors import InternalError
from headrace.core.layout import KvLayout


class PageMemory:
    """`bytes`: uint8 of shape [layers, num_blocks, page_bytes]; it starts zeroed, which costs nothing until touched."""

    def __init__(self, layout: KvLayout, num_blocks: int) -> None:
        self._layout = layout
        self.bytes: npt.NDArray[np.uint8] = np.zeros((layout.layers, num_blocks, layout.page_bytes), dtype=np.uint8)

    @property
    def layout(self) -> KvLayout:
        return self._layout

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        target = self._shaped(blocks, into)
        np.take(self.bytes, np.asarray(blocks, dtype=np.intp), axis=1, out=target, mode="clip")

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        self.bytes[:, np.asarray(blocks, dtype=np.intp)] = self._shaped(blocks, data)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to), one after the other: a later pair may read what an earlier one wrote."""
        for source, target in pairs:
            self.bytes[:, target] = self.bytes[:, source]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose contents must not reach another sequence, not even masked out (0 x NaN is NaN)."""
        self.bytes[:, np.asarray(blocks, dtype=np.intp)] = 0

    def _shaped(self, blocks: Sequence[int], buffer: memoryview) -> npt.NDArray[np.uint8]:
        count = self.bytes.shape[1]
        if buffer.nbytes != len(blocks) * self._layout.block_bytes or not all(0 <= block < count for block in blocks):
            raise InternalError(
                f"{len(blocks)} blocks of {self._layout.block_bytes} bytes do not fit a buffer of {buffer.nbytes}"
                f" bytes, or one of them is not among the pool's {count}."
            )
        shape = (self._layout.layers, len(blocks), self._layout.page_bytes)
        return np.frombuffer(buffer, dtype=np.uint8).reshape(shape)
