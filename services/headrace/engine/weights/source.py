"""The Source border: where a model's tensors come from while its decoder is put together.

Owns the border, and the check that a model used all the tensors there are: a tensor nobody asked for means that the
model computes something else than its file describes.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from headrace.core.errors import StartupError
from headrace.modelfiles.files import ModelFiles, TensorEntry

# What a matrix, and what a tensor of one dimension is held as: by torch, or for the native kernels.
M = TypeVar("M")
V = TypeVar("V")


class Source(Protocol[M, V]):
    """One rank's tensors of a model, by name, rounded to the model's dtype. Each raises StartupError if a tensor is
    missing or of another shape. shapes and lengths: of whole tensors. shard: the dimension of which only this rank's
    share is wanted."""

    @property
    def ranks(self) -> int:
        """That share the model."""
        ...

    def matrix(self, name: str, shape: tuple[int, int], shard: int | None = None) -> M: ...

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> M:
        """Several matrices of one input as one, rows below rows; of each this rank's share of its rows."""
        ...

    def fused(self, name: str, sections: Sequence[int], columns: int) -> M:
        """This rank's share of each section of rows of one matrix, rows below rows: what `stacked` gives where a
        checkpoint keeps the matrices apart."""
        ...

    def own_rows(self, whole: M) -> M:
        """This rank's share of the rows of a matrix that it has whole."""
        ...

    def vector(self, name: str, length: int) -> V: ...

    def joined(self, names: Sequence[str], lengths: Sequence[int]) -> V:
        """Several vectors as one; of each this rank's share."""
        ...

    def one_plus(self, vector: V) -> V:
        """1 + a vector, in float32."""
        ...

    def per_head(self, vectors: Sequence[tuple[V, int]]) -> V:
        """[head, length]: each vector for as many heads as stand beside it."""
        ...

    def finish(self, ignorable: frozenset[str]) -> None:
        """Raises StartupError if tensors outside `ignorable` were left unused."""
        ...


class Inventory:
    """The tensors that a model's files have, and which of them were asked for."""

    def __init__(self, files: ModelFiles) -> None:
        self._model = files.name
        self._entries = {entry.name: entry for entry in files.tensors}
        self._used: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        """Raises StartupError if the tensor is missing or of another shape."""
        entry = self._entries.get(name)
        if entry is None or entry.shape != shape:
            found = "is missing" if entry is None else f"has shape {entry.shape} instead of {shape}"
            raise StartupError(f"Tensor {name} of model {self._model} {found}.", remedy="Fetch the model again.")
        self._used.add(name)
        return entry

    def finish(self, ignorable: frozenset[str]) -> None:
        """See Source."""
        left = sorted(self._entries.keys() - self._used - ignorable)
        if left:
            raise StartupError(
                f"Model {self._model} has {len(left)} tensors that its architecture does not use, such as {left[0]}.",
                remedy="This variant of the architecture is not supported.",
            )
