"""A model's tensors for the native kernels: matrices stay in their files until they are packed, vectors are read.

Owns a whole model, for one rank.
"""

from collections.abc import Sequence

import numpy as np

from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.rounding import Floats, rounded
from headrace.engine.weights.source import Inventory
from headrace.engine.weights.stored import StoredMatrix
from headrace.modelfiles.files import ModelFiles


class StoredWeights:
    """See Source. Vectors are float32, rounded to `dtype`."""

    def __init__(self, files: ModelFiles, dtype: str) -> None:
        self._dtype = dtype
        self._inventory = Inventory(files)

    @property
    def ranks(self) -> int:
        return 1

    def matrix(self, name: str, shape: tuple[int, int], shard: int | None = None) -> StoredMatrix:
        return self.stacked((name,), (shape,))

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> StoredMatrix:
        return StoredMatrix(tuple(self._inventory.take(*wanted) for wanted in zip(names, shapes, strict=True)))

    def fused(self, name: str, sections: Sequence[int], columns: int) -> StoredMatrix:
        return self.stacked((name,), ((sum(sections), columns),))

    def own_rows(self, whole: StoredMatrix) -> StoredMatrix:
        return whole

    def vector(self, name: str, length: int) -> Floats:
        return rounded(read_tensor(self._inventory.take(name, (length,))), self._dtype)

    def joined(self, names: Sequence[str], lengths: Sequence[int]) -> Floats:
        return np.concatenate([self.vector(*wanted) for wanted in zip(names, lengths, strict=True)])

    def one_plus(self, vector: Floats) -> Floats:
        return np.float32(1.0) + vector

    def per_head(self, vectors: Sequence[tuple[Floats, int]]) -> Floats:
        return np.concatenate([np.tile(vector, (heads, 1)) for vector, heads in vectors])

    def finish(self, ignorable: frozenset[str]) -> None:
        self._inventory.finish(ignorable)
