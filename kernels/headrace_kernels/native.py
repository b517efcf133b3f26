"""The native CPU kernels: a forward pass as a program of operations that C++ runs in one call.

Owns the C interface (csrc/program.h), matrices packed for it, and the lifetime of what a program points to. Buffers are
float32, row-major; what an operation computes stands in program.h.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace_kernels.library import built, opened
from headrace_kernels.room import ALIGNMENT, Room, aligned


class Format(IntEnum):
    """Of weights; F32 and BF16 also of pages.

    INT8 has one scale a column; INT8_GROUPS a scale, and INT4 a scale and a minimum, for each 32 values of a column.
    """

    F32 = 0
    BF16 = 1
    INT8 = 2
    INT4 = 3
    INT8_GROUPS = 4


class Stored(IntEnum):
    """How a model file stores a row; those with a Q are ggml's blocks of 32 values."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5


class Activation(IntEnum):
    SILU = 0
    GELU_TANH = 1


_MAX_DIM = 256
# What came of a choice; see headrace_choose in program.h.
_OBSTACLES = {
    None: "they are not built here",
    1: "this processor lacks it",
    2: "on this processor it computed something else than AVX2 when it was tried",
    3: "this process has packed matrices for another instruction set",
}
# Query heads of a KV head.
MAX_GROUP = 64

_Pointer, _Int, _Float, _Flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class Embed(ctypes.Structure):
    _fields_ = (("weights", _Pointer), ("out", _Pointer), ("width", _Int), ("scale", _Float), ("format", _Flag))


class Norm(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("in_", "weight", "out")),
        ("width", _Int),
        ("eps", _Float),
        ("add", _Flag),
    )


class Linear(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("in_", "weights", "bias", "out", "scratch")),
        ("columns", _Int),
        ("inner", _Int),
        ("format", _Flag),
        ("add", _Flag),
    )


class Rope(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("states", "norms", "cosines", "sines", "queries", "pages")),
        *((name, _Int) for name in ("heads", "kv_heads", "dim", "rotary", "block_tokens")),
        ("eps", _Float),
        ("format", _Flag),
    )


class Attend(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("queries", "pages", "out")),
        *((name, _Int) for name in ("heads", "kv_heads", "dim", "block_tokens", "window")),
        ("scale", _Float),
        ("softcap", _Float),
        ("format", _Flag),
    )


class Gate(ctypes.Structure):
    _fields_ = (("in_", _Pointer), ("out", _Pointer), ("inner", _Int), ("activation", _Flag))


class Head(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("hidden", "norm", "normed", "weights", "scratch")),
        ("width", _Int),
        ("vocabulary", _Int),
        ("eps", _Float),
        ("softcap", _Float),
        ("format", _Flag),
    )


Operation = Embed | Norm | Linear | Rope | Attend | Gate | Head
_KINDS: tuple[type[Operation], ...] = (Embed, Norm, Linear, Rope, Attend, Gate, Head)


class _AnyOperation(ctypes.Union):
    _fields_ = tuple((kind.__name__.lower(), kind) for kind in _KINDS)


class _Op(ctypes.Structure):
    _fields_ = (("kind", _Flag), ("operation", _AnyOperation))


class Step(ctypes.Structure):
    """What one run works on; see program.h. Keep the arrays alive whose addresses it holds."""

    _fields_ = (
        *(
            (name, _Pointer)
            for name in ("ids", "positions", "slots", "first_row", "seq_rows", "table", "head_rows", "logits")
        ),
        *((name, _Int) for name in ("rows", "sequences", "table_stride", "head_count")),
    )


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is known of a packed matrix [columns, inner]."""

    format: Format
    columns: int
    inner: int

    @property
    def bytes(self) -> int:
        return int(_library().headrace_packed_bytes(self.format, self.columns, self.inner))


_ROOM = Room()


class Packed:
    """A matrix [columns, inner] as the kernels read it."""

    def __init__(self, format: Format, columns: int, inner: int) -> None:
        self.format, self.columns, self.inner = format, columns, inner
        size = _library().headrace_packed_bytes(format, columns, inner)
        if not size:
            raise ValueError(f"A matrix with rows of {inner} values cannot be packed as {format.name}.")
        self._memory = _ROOM.take(size)
        self.address = self._memory.ctypes.data

    @staticmethod
    def of_rows(
        addresses: npt.NDArray[np.int64], stored: npt.NDArray[np.int32], inner: int, format: Format, threads: int = 1
    ) -> "Packed":
        """Out of rows of `inner` values in memory. addresses, stored (see Stored): [columns].

        INT4 holds rows in Q4_0 and Q4_1, and INT8_GROUPS those in Q8_0, as they are; whatever else is rounded.
        """
        packed = Packed(format, len(addresses), inner)
        rows = np.ascontiguousarray(addresses), np.ascontiguousarray(stored)
        pointers = (each.ctypes.data for each in rows)
        _library().headrace_pack(format, *pointers, packed.columns, inner, packed.address, threads)
        return packed


class Timings:
    """What operations took, by kind."""

    def __init__(self) -> None:
        self.nanoseconds = (_Int * len(_KINDS))()

    @property
    def seconds(self) -> dict[str, float]:
        """By the kind's name in lower case."""
        return {kind.__name__.lower(): taken / 1e9 for kind, taken in zip(_KINDS, self.nanoseconds, strict=True)}


class Program:
    """Operations in order. keep: what they point to, held as long as the program lives.

    timings: where set, runs add to it; they then start and end each operation by itself, which takes longer.
    Raises ValueError for a product without the scratch that it wants.
    """

    def __init__(self, operations: Sequence[Operation], keep: Sequence[object]) -> None:
        self.timings: Timings | None = None
        self._keep = tuple(keep)
        self._ops = (_Op * len(operations))()
        for op, operation in zip(self._ops, operations, strict=True):
            _require_scratch(operation)
            op.kind = _KINDS.index(type(operation))
            setattr(op.operation, type(operation).__name__.lower(), operation)

    def run(self, step: Step, threads: int) -> None:
        """Not one program from two threads at once. Different ones take turns."""
        program = self._ops, len(self._ops), ctypes.byref(step), threads
        if self.timings is None:
            _library().headrace_run(*program)
        else:
            _library().headrace_run_timed(*program, self.timings.nanoseconds)

    def matrices(self) -> list[Matrix]:
        """All that it multiplies by, in order."""
        found: list[Matrix] = []
        for op in self._ops:
            kind = _KINDS[op.kind]
            if kind is Linear:
                linear = op.operation.linear
                found.append(Matrix(Format(linear.format), linear.columns, linear.inner))
            elif kind is Head:
                head = op.operation.head
                found.append(Matrix(Format(head.format), head.vocabulary, head.width))
        return found


def _require_scratch(operation: Operation) -> None:
    """Without it the product would write to nowhere. Which formats want some depends on the instruction set."""
    if not isinstance(operation, Linear | Head) or operation.scratch:
        return
    inner = operation.inner if isinstance(operation, Linear) else operation.width
    if _library().headrace_scratch(operation.format, 1, inner):
        raise ValueError(f"A product in {Format(operation.format).name} wants scratch here and has none.")


def scratch(format: Format, rows: int, inner: int) -> npt.NDArray[np.uint8] | None:
    """Room for a Linear or Head of so many rows, None where it wants none."""
    size = int(_library().headrace_scratch(format, rows, inner))
    return aligned(np.empty(size + ALIGNMENT, dtype=np.uint8))[:size] if size else None


def read(memory: npt.NDArray[np.int64], threads: int) -> int:
    """Sum, modulo 2**64, of the 64-bit words of contiguous memory: reads it once, and does little else."""
    return int(_library().headrace_read(memory.ctypes.data, memory.nbytes, threads))


def instruction_set() -> str | None:
    """What the kernels use on this processor; None where they were not built or it has none that they know."""
    found = _library().headrace_isa() if built() is not None else None
    return found.decode() if found else None


def choose(key: str) -> None:
    """Computes with the instruction set "avx2", "avx512" or "avx512bf16" from now on, instead of the best one.

    Raises ValueError, and changes nothing, if there is none: the kernels were not built, this processor lacks it, it
    was refused, or something is packed for another.
    """
    outcome = _library().headrace_choose(key.encode()) if built() is not None else None
    if outcome in _OBSTACLES:
        raise ValueError(f"The native kernels cannot use {key}: {_OBSTACLES[outcome]}.")


def refused() -> str:
    """Names of instruction sets better than the one in use that this processor has, but that computed something else
    than AVX2 when they were tried; "" if none."""
    found = _library().headrace_refused() if built() is not None else b""
    return str(found.decode())


def takes_rows_of(inner: int, format: Format) -> bool:
    """Whether a matrix with rows of `inner` values can be packed so: where there are groups, of whole ones."""
    return instruction_set() is not None and int(_library().headrace_packed_bytes(format, 1, inner)) > 0


def takes_heads_of(dim: int) -> bool:
    """Whether attention knows heads of `dim` values: whole vectors, up to 256 values."""
    return instruction_set() is not None and dim % int(_library().headrace_lanes()) == 0 and dim <= _MAX_DIM


@cache
def _library() -> ctypes.CDLL:
    return open_library(built())


def open_library(path: Path | None) -> ctypes.CDLL:
    """The C interface of a build of csrc. Raises RuntimeError for None."""
    signatures = {
        "headrace_isa": (ctypes.c_char_p, ()),
        "headrace_refused": (ctypes.c_char_p, ()),
        "headrace_choose": (_Flag, (ctypes.c_char_p,)),
        "headrace_lanes": (_Flag, ()),
        "headrace_packed_bytes": (_Int, (_Flag, _Int, _Int)),
        "headrace_pack": (None, (_Flag, _Pointer, _Pointer, _Int, _Int, _Pointer, _Flag)),
        "headrace_scratch": (_Int, (_Flag, _Int, _Int)),
        "headrace_run": (None, (_Pointer, _Int, _Pointer, _Flag)),
        "headrace_run_timed": (None, (_Pointer, _Int, _Pointer, _Flag, _Pointer)),
        "headrace_read": (ctypes.c_uint64, (_Pointer, _Int, _Flag)),
    }
    return opened(path, signatures)
