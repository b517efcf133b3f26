"""Matrices that stay in their files until they are packed: where each of their rows stands, and how.

Owns the map of the files. It reads no value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.weights.decode import mapped_rows
from headrace.modelfiles.files import TensorEntry


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """[row, column]: whole tensors of one width, rows below rows."""

    entries: tuple[TensorEntry, ...]

    @property
    def encodings(self) -> frozenset[str]:
        return frozenset(entry.encoding for entry in self.entries)

    @property
    def rows(self) -> int:
        return sum(entry.shape[0] for entry in self.entries)

    @property
    def columns(self) -> int:
        return self.entries[0].shape[1]

    @contextmanager
    def mapped(self) -> Iterator[list[tuple[npt.NDArray[np.int64], str]]]:
        """Within the block: for each tensor the addresses of its rows' bytes, with GGUF's row permutation undone, and
        their encoding. Afterwards none of the files' pages count as ours. Raises StartupError for a broken file."""
        maps = [mapped_rows(entry) for entry in self.entries]
        parts = zip(maps, self.entries, strict=True)
        yield [(_addresses(lines, entry), entry.encoding) for lines, entry in parts]


def _addresses(lines: npt.NDArray[np.uint8], entry: TensorEntry) -> npt.NDArray[np.int64]:
    order = np.arange(len(lines))
    if entry.permuted_heads:
        order = order.reshape(entry.permuted_heads, -1, 2).swapaxes(1, 2).reshape(-1)
    addresses: npt.NDArray[np.int64] = lines.ctypes.data + order * lines.strides[0]
    return addresses
