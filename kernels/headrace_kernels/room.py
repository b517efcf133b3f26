"""Memory for matrices: one after the other in large pieces, which the system can map with large pages.

A product reads each matrix once a step; with pages of 4 KiB the processor waits for their addresses. A piece is freed
with the last matrix that stands in it, the newest not before another is begun.
"""

from threading import Lock

import numpy as np
import numpy.typing as npt

# numpy asks for large pages from 4 MiB on (NUMPY_MADVISE_HUGEPAGE). What is never written takes no memory.
_PIECE_BYTES = 64 << 20
# Of a cache line, which is also the widest vector.
ALIGNMENT = 64


class Room:
    def __init__(self) -> None:
        self._lock = Lock()
        self._free: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """`size` bytes at a multiple of 64, of nobody else's. Their values are anything."""
        if size > _PIECE_BYTES // 2:
            return aligned(np.empty(size + ALIGNMENT, dtype=np.uint8))[:size]
        with self._lock:
            free = aligned(self._free)
            if size > len(free):
                free = aligned(np.empty(_PIECE_BYTES, dtype=np.uint8))
            taken, self._free = free[:size], free[size:]
            return taken


def aligned(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The part of `memory` that begins at a multiple of ALIGNMENT."""
    return memory[-memory.ctypes.data % ALIGNMENT :]
