"""The native CPU kernels: a forward pass as a program of operations that C++ runs in one call.

Owns the C interface (csrc/program.h), matrices packed for it, and the lifetime of what a program points to. Buffers are
float32 tensors on the CPU, row-major; what an operation computes stands in program.h.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


class Format(IntEnum):
    """Of weights; F32 and BF16 also of pages and embeddings.

    INT8 has one scale a column, INT4 a scale and a minimum for each 32 values of a column.
    """

    F32 = 0
    BF16 = 1
    INT8 = 2
    INT4 = 3


class Activation(IntEnum):
    SILU = 0
    GELU_TANH = 1


_MAX_DIM = 256
# Query heads of a KV head.
MAX_GROUP = 64

_Pointer, _Int, _Float, _Flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class Embed(ctypes.Structure):
    _fields_ = (("table", _Pointer), ("out", _Pointer), ("width", _Int), ("scale", _Float), ("format", _Flag))


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
    """What one run works on; see program.h. Keep the tensors alive whose addresses it holds."""

    _fields_ = (
        *(
            (name, _Pointer)
            for name in ("ids", "positions", "slots", "first_row", "seq_rows", "table", "head_rows", "logits")
        ),
        *((name, _Int) for name in ("rows", "sequences", "table_stride", "head_count")),
    )


class Packed:
    """A matrix [columns, inner] as the kernels read it."""

    def __init__(self, format: Format, columns: int, inner: int) -> None:
        self.format, self.columns, self.inner = format, columns, inner
        size = _library().headrace_packed_bytes(format, columns, inner)
        if not size:
            raise ValueError(f"A matrix with rows of {inner} values cannot be packed as {format.name}.")
        self._memory = torch.empty(size + 64, dtype=torch.uint8)
        self.address = -(-self._memory.data_ptr() // 64) * 64

    @staticmethod
    def of(weights: Tensor, format: Format) -> "Packed":
        """Rounds where the format asks for it."""
        packed = Packed(format, *weights.shape)
        wide = weights.float().contiguous()
        _library().headrace_pack(format, wide.data_ptr(), *wide.shape, packed.address)
        return packed

    @staticmethod
    def of_codes(codes: Tensor, scales: Tensor, minima: Tensor) -> "Packed":
        """INT4 as it is. codes: uint8 [columns, inner], 0 to 15; scales, minima: float32 [columns, inner / 32]."""
        packed = Packed(Format.INT4, *codes.shape)
        parts = codes.contiguous(), scales.float().contiguous(), minima.float().contiguous()
        _library().headrace_pack_codes(*(part.data_ptr() for part in parts), *codes.shape, packed.address)
        return packed


class Program:
    """Operations in order. keep: what they point to, held as long as the program lives."""

    def __init__(self, operations: Sequence[Operation], keep: Sequence[object]) -> None:
        self._keep = tuple(keep)
        self._ops = (_Op * len(operations))()
        for op, operation in zip(self._ops, operations, strict=True):
            op.kind = _KINDS.index(type(operation))
            setattr(op.operation, type(operation).__name__.lower(), operation)

    def run(self, step: Step, threads: int) -> None:
        """Not one program from two threads at once. Different ones take turns."""
        _library().headrace_run(self._ops, len(self._ops), ctypes.byref(step), threads)


def scratch(format: Format, rows: int, inner: int) -> Tensor | None:
    """Room for a Linear or Head of so many rows, None where it wants none."""
    size = _library().headrace_scratch(format, rows, inner)
    return torch.empty(size, dtype=torch.uint8) if size else None


def instruction_set() -> str | None:
    """What the kernels use on this processor; None where they were not built or it has none that they know."""
    found = _library().headrace_isa() if _path() is not None else None
    return found.decode() if found else None


def takes_heads_of(dim: int) -> bool:
    """Whether attention knows heads of `dim` values: whole vectors, up to 256 values."""
    return instruction_set() is not None and dim % int(_library().headrace_lanes()) == 0 and dim <= _MAX_DIM


def _path() -> Path | None:
    return next(iter(sorted(Path(__file__).parent.glob("_native*.so"))), None)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_path()))
    signatures = {
        "headrace_isa": (ctypes.c_char_p, ()),
        "headrace_lanes": (_Flag, ()),
        "headrace_packed_bytes": (_Int, (_Flag, _Int, _Int)),
        "headrace_pack": (None, (_Flag, _Pointer, _Int, _Int, _Pointer)),
        "headrace_pack_codes": (None, (_Pointer, _Pointer, _Pointer, _Int, _Int, _Pointer)),
        "headrace_scratch": (_Int, (_Flag, _Int, _Int)),
        "headrace_run": (None, (_Pointer, _Int, _Pointer, _Flag)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
