"""Copies whole KV blocks between a pool and one buffer, near the rate of memory; with numpy where C++ is not built.

Owns the C interface (csrc/page_copy.h). It knows nothing of what stands in pages.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from headrace_kernels.library import built, opened

Bytes = npt.NDArray[np.uint8]
_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class PageCopy:
    """Of one pool: contiguous bytes [layer, block, byte], which stay where they are. Who calls checks the blocks."""

    def __init__(self, pool: Bytes) -> None:
        assert pool.flags.c_contiguous
        layers, blocks, page = pool.shape
        self._pool = pool
        # Looked up once: a copy of few pages would spend half of its time on it.
        self._place = pool.ctypes.data, layers, blocks * page, page
        self._library = _library()

    def gather(self, blocks: Sequence[int], into: Bytes) -> None:
        """`into`, bytes one behind the other, becomes [layer, block, byte] of these blocks."""
        assert into.flags.writeable
        ids = np.asarray(blocks, np.int64)
        if self._library is None:
            np.take(self._pool, ids, axis=1, out=self._shaped(into, len(ids)), mode="clip")
        else:
            self._library.headrace_gather_pages(*self._place, ids.ctypes.data, len(ids), into.ctypes.data)

    def scatter(self, blocks: Sequence[int], data: Bytes) -> None:
        """The inverse of `gather`: these blocks become `data`."""
        assert self._pool.flags.writeable
        ids = np.asarray(blocks, np.int64)
        if self._library is None:
            self._pool[:, ids] = self._shaped(data, len(ids))
        else:
            self._library.headrace_scatter_pages(*self._place, ids.ctypes.data, len(ids), data.ctypes.data)

    def _shaped(self, buffer: Bytes, count: int) -> Bytes:
        return buffer.reshape(self._pool.shape[0], count, self._pool.shape[2])


@cache
def _library() -> ctypes.CDLL | None:
    """None where it is not built."""
    path = built()
    if path is None:
        return None
    sizes = (_Pointer, _Int, _Int, _Int, _Pointer, _Int, _Pointer)
    return opened(path, {"headrace_gather_pages": (None, sizes), "headrace_scatter_pages": (None, sizes)})
