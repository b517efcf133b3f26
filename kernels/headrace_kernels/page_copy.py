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


def gather(pool: Bytes, blocks: Sequence[int], into: Bytes) -> None:
    """`into`, bytes one behind the other, becomes [layer, block, byte] of `pool`'s blocks. The pool is contiguous, of
    the same three dimensions, and has all of the blocks."""
    assert into.flags.writeable
    ids = np.asarray(blocks, np.int64)
    library = _library()
    if library is None:
        np.take(pool, ids, axis=1, out=into.reshape(pool.shape[0], len(ids), pool.shape[2]), mode="clip")
    else:
        library.headrace_gather_pages(*_place(pool), ids.ctypes.data, len(ids), into.ctypes.data)


def scatter(pool: Bytes, blocks: Sequence[int], data: Bytes) -> None:
    """The inverse of `gather`: `pool`'s blocks become `data`."""
    assert pool.flags.writeable
    ids = np.asarray(blocks, np.int64)
    library = _library()
    if library is None:
        pool[:, ids] = data.reshape(pool.shape[0], len(ids), pool.shape[2])
    else:
        library.headrace_scatter_pages(*_place(pool), ids.ctypes.data, len(ids), data.ctypes.data)


def _place(pool: Bytes) -> tuple[int, int, int, int]:
    """Address, layers, bytes from layer to layer, bytes of a page."""
    assert pool.flags.c_contiguous
    layers, blocks, page = pool.shape
    return pool.ctypes.data, layers, blocks * page, page


@cache
def _library() -> ctypes.CDLL | None:
    """None where it is not built."""
    path = built()
    if path is None:
        return None
    sizes = (_Pointer, _Int, _Int, _Int, _Pointer, _Int, _Pointer)
    return opened(path, {"headrace_gather_pages": (None, sizes), "headrace_scatter_pages": (None, sizes)})
