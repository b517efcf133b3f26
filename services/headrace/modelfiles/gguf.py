"""The GGUF container: header, metadata and tensor table, read through a memory map.

Owns the file format (versions 2 and 3, little-endian) and nothing of what the keys mean. Every length and count is
checked against what is left of the file before it is believed, so a broken file costs neither time nor memory.
Format: the ggml project's `docs/gguf.md`.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import StartupError

MetadataValue = int | float | bool | str | list["MetadataValue"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_STRING, _ARRAY = 8, 9
# Metadata type id -> little-endian numpy type; 7 is a bool of one byte.
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_SMALLEST_ENTRY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class Encoding:
    """A ggml tensor type: `block` values take `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


ENCODINGS = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    8: Encoding("Q8_0", 32, 34),
    30: Encoding("BF16", 1, 2),
}
# Only to name in an error what cannot be read.
_OTHER_TYPES = {
    6: "Q5_0",
    7: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table. shape: row-major (reversed from the file); offset: from the file's start."""

    name: str
    encoding: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF says of itself; the tensors' bytes stay where they are."""

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> GgufFile:
    """Header, metadata and tensor table of `path`. Raises StartupError where the file is missing, cut or broken."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 24:
                raise _broken(path, "it is too short to be one")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).read()
    except OSError as error:
        raise StartupError(
            f"{path} cannot be read: {error.strerror}.", remedy="Check the path and its rights."
        ) from error


def _broken(path: Path, why: str) -> StartupError:
    return StartupError(f"{path} is not a readable GGUF file: {why}.", remedy="Fetch the file again.")


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> GgufFile:
        if self._take(4) != _MAGIC:
            raise _broken(self._path, "it does not begin with GGUF")
        version = self._u32()
        if version not in _VERSIONS:
            raise _broken(self._path, f"version {version} is not known (big-endian files are not supported)")
        tensor_count = self._count(_SMALLEST_TENSOR)
        metadata = self._metadata(self._count(_SMALLEST_ENTRY))
        rows = [self._tensor_row() for _ in range(tensor_count)]
        start = self._data_start(metadata)
        tensors = tuple(self._placed(row, start) for row in rows)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise _broken(self._path, "two tensors have the same name")
        return GgufFile(self._path, metadata, tensors)

    def _metadata(self, count: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise _broken(self._path, f"the key {key!r} appears twice")
            metadata[key] = self._value(self._u32(), _MAX_NESTING)
        return metadata

    def _value(self, kind: int, nesting: int) -> MetadataValue:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(nesting)
        return self._scalars(kind, 1)[0]

    def _array(self, nesting: int) -> list[MetadataValue]:
        if nesting == 0:
            raise _broken(self._path, "its arrays are nested too deeply")
        kind = self._u32()
        if kind == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if kind == _ARRAY:
            return [self._array(nesting - 1) for _ in range(self._count(12))]
        return self._scalars(kind, self._count(1))

    def _scalars(self, kind: int, count: int) -> list[MetadataValue]:
        if kind not in _SCALARS:
            raise _broken(self._path, f"metadata type {kind} is not known")
        dtype = np.dtype(_SCALARS[kind])
        values: list[MetadataValue] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise _broken(self._path, f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed([self._u64() for _ in range(dimensions)]))
        return name, shape, self._u32(), self._u64()

    def _data_start(self, metadata: dict[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise _broken(self._path, f"its alignment is {alignment}")
        return -(-self._at // alignment) * alignment

    def _placed(self, row: tuple[str, tuple[int, ...], int, int], start: int) -> GgufTensor:
        name, shape, kind, offset = row
        encoding = ENCODINGS.get(kind)
        if encoding is None:
            known = ", ".join(each.name for each in ENCODINGS.values())
            stored = _OTHER_TYPES.get(kind, f"type {kind}")
            raise StartupError(
                f"{self._path} stores tensor {name!r} as {stored}, which is not supported.",
                remedy=f"Use a file with tensors in {known}.",
            )
        if not all(shape) or shape[-1] % encoding.block:
            raise _broken(self._path, f"tensor {name!r} cannot have shape {list(shape)} in {encoding.name}")
        nbytes = math.prod(shape) // encoding.block * encoding.nbytes
        if start + offset + nbytes > self._size:
            raise _broken(self._path, f"it ends before tensor {name!r} does")
        return GgufTensor(name, encoding.name, shape, start + offset, nbytes)

    def _take(self, count: int) -> bytes:
        if count > self._size - self._at:
            raise _broken(self._path, "it ends inside its header")
        self._at += count
        return self._data[self._at - count : self._at]

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _count(self, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each."""
        count = self._u64()
        if count * smallest > self._size - self._at:
            raise _broken(self._path, "it ends inside its header")
        return count

    def _string(self) -> str:
        try:
            return self._take(self._u64()).decode()
        except UnicodeDecodeError as error:
            raise _broken(self._path, "a text in its header is not UTF-8") from error
