"""Weights: hands a model its tensors by name, in the wanted dtype, one file read each.

Owns the check that a model used all the tensors there are: a tensor nobody asked for means that the model computes
something else than its file describes.
"""

import torch

from headrace.core.errors import StartupError
from headrace.engine.weights.decode import read_tensor
from headrace.modelfiles.files import ModelFiles

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Weights:
    """The tensors of a model's files, decoded when they are asked for."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype) -> None:
        self._model = files.name
        self._entries = {entry.name: entry for entry in files.tensors}
        self._dtype = dtype
        self._used: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Raises StartupError if the tensor is missing or of another shape."""
        entry = self._entries.get(name)
        if entry is None or entry.shape != shape:
            found = "is missing" if entry is None else f"has shape {entry.shape} instead of {shape}"
            raise StartupError(f"Tensor {name} of model {self._model} {found}.", remedy="Fetch the model again.")
        self._used.add(name)
        return torch.tensor(read_tensor(entry), dtype=self._dtype)

    def stacked(self, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """Several matrices of one input as one, rows below rows."""
        return torch.cat([self.take(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def finish(self, ignorable: frozenset[str]) -> None:
        """Raises StartupError if tensors outside `ignorable` were left unused."""
        left = sorted(self._entries.keys() - self._used - ignorable)
        if left:
            raise StartupError(
                f"Model {self._model} has {len(left)} tensors that its architecture does not use, such as {left[0]}.",
                remedy="This variant of the architecture is not supported.",
            )


def weight_bytes(files: ModelFiles, dtype: torch.dtype) -> int:
    """Bytes of all tensors once loaded in `dtype`."""
    return sum(torch.Size(entry.shape).numel() for entry in files.tensors) * dtype.itemsize
