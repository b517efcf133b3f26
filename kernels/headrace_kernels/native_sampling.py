"""Sampling in native code: the best tokens, draws and a token's standing, over rows of float32 logits.

Owns the C interface (csrc/sample.h). Arrays are numpy's; the values of a row lie side by side.
"""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace_kernels import native

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# One draw; see DrawRequest in sample.h.
DRAW_REQUEST = np.dtype(
    [(name, np.int64) for name in ("row", "best", "seed", "choice", "position", "top_k")]
    + [(name, np.float64) for name in ("temperature", "top_p", "log_min_p")]
)

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


def best(logits: Logits) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """The first of the largest values of each row of [row, vocabulary], and whether all of the row is finite."""
    tokens, finite = np.empty(len(logits), np.int64), np.empty(len(logits), np.bool_)
    rows, vocabulary = logits.shape
    outputs = tokens.ctypes.data, finite.ctypes.data
    _library().headrace_best(logits.ctypes.data, rows, _stride(logits), vocabulary, *outputs)
    return tokens, finite


def draw(logits: Logits, requests: npt.NDArray[np.void]) -> list[int]:
    """A token for each of `requests` (DRAW_REQUEST). The rows are finite or -inf."""
    tokens = np.empty(len(requests), np.int64)
    arguments = requests.ctypes.data, len(requests), tokens.ctypes.data
    _library().headrace_draw(logits.ctypes.data, _stride(logits), logits.shape[1], *arguments)
    drawn: list[int] = tokens.tolist()
    return drawn


def standing(row: Logits, token: int, count: int) -> tuple[float, int, Ids]:
    """Of a row of finite logits: its mass in units of 2^-34, how many tokens rank before `token`, the `count` best."""
    mass, before, top = ctypes.c_double(), ctypes.c_int64(), np.empty(count, np.int64)
    addresses = ctypes.addressof(mass), ctypes.addressof(before), top.ctypes.data
    _library().headrace_standing(row.ctypes.data, len(row), token, count, *addresses)
    return mass.value, before.value, top


def _stride(logits: Logits) -> int:
    """From one row to the next, in values."""
    return logits.strides[0] // logits.itemsize


@cache
def _library() -> ctypes.CDLL:
    return open_library(native.built())


def open_library(path: Path) -> ctypes.CDLL:
    """The C interface of a build of csrc."""
    arguments = {
        "headrace_best": (_Pointer, _Int, _Int, _Int, _Pointer, _Pointer),
        "headrace_draw": (_Pointer, _Int, _Int, _Pointer, _Int, _Pointer),
        "headrace_standing": (_Pointer, _Int, _Int, _Int, _Pointer, _Pointer, _Pointer),
    }
    return native.typed(path, {name: (None, taken) for name, taken in arguments.items()})
