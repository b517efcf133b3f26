"""Weights: hands a rank of a model its tensors, or its share of them, by name, in the wanted dtype.

Owns the check that a model used all the tensors there are: a tensor nobody asked for means that the model computes
something else than its file describes. A share is read alone, never the whole tensor around it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.errors import StartupError
from headrace.engine.parallel import ALONE, Parallel, share_length
from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.stored import StoredMatrices
from headrace.modelfiles.files import ModelFiles, TensorEntry

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_CPU = torch.device("cpu")


class Weights:
    """The tensors of a model's files, decoded when they are asked for. `parallel` is whose shares they are, and
    `device` where they are put, one after the other.

    stored: where given, matrices are not decoded: placeholders stand for them, and it knows what for. For one rank.
    """

    def __init__(
        self,
        files: ModelFiles,
        dtype: torch.dtype,
        parallel: Parallel = ALONE,
        *,
        stored: StoredMatrices | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.parallel = parallel
        self._stored = stored
        self._model = files.name
        self._entries = {entry.name: entry for entry in files.tensors}
        self._used: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...], shard: int | None = None) -> Tensor:
        """A tensor of one or two dimensions. shape: the whole tensor's. shard: the dimension of which only this rank's
        share is wanted. Raises StartupError if the tensor is missing or of another shape."""
        entry = self._entry(name, shape)
        if self._stored is not None and len(shape) > 1:
            return self._stored.placeholder([entry], self.dtype)
        parts = [slice(None)] * len(shape)
        if shard is not None:
            parts[shard] = self._share(0, shape[shard])
        return self._padded(self._read(entry, parts), shape, shard)

    def stacked(self, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], shard: int | None = None) -> Tensor:
        """Several matrices of one input as one, rows below rows; of each this rank's share, if shard is 0."""
        if self._stored is not None and len(shapes[0]) > 1:
            entries = [self._entry(name, shape) for name, shape in zip(names, shapes, strict=True)]
            return self._stored.placeholder(entries, self.dtype)
        return torch.cat([self.take(name, shape, shard) for name, shape in zip(names, shapes, strict=True)])

    def fused(self, name: str, sections: tuple[int, ...], columns: int) -> Tensor:
        """This rank's share of each section of rows of one matrix, rows below rows: what `stacked` gives where a
        checkpoint keeps the matrices apart."""
        entry = self._entry(name, (sum(sections), columns))
        if self._stored is not None:
            return self._stored.placeholder([entry], self.dtype)
        shares: list[Tensor] = []
        start = 0
        for rows in sections:
            part = self._read(entry, [self._share(start, rows), slice(None)])
            shares.append(self._padded(part, (rows, columns), 0))
            start += rows
        return torch.cat(shares)

    def finish(self, ignorable: frozenset[str]) -> None:
        """Raises StartupError if tensors outside `ignorable` were left unused."""
        left = sorted(self._entries.keys() - self._used - ignorable)
        if left:
            raise StartupError(
                f"Model {self._model} has {len(left)} tensors that its architecture does not use, such as {left[0]}.",
                remedy="This variant of the architecture is not supported.",
            )

    def _entry(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        entry = self._entries.get(name)
        if entry is None or entry.shape != shape:
            found = "is missing" if entry is None else f"has shape {entry.shape} instead of {shape}"
            raise StartupError(f"Tensor {name} of model {self._model} {found}.", remedy="Fetch the model again.")
        self._used.add(name)
        return entry

    def _share(self, first: int, length: int) -> slice:
        share = share_length(length, self.parallel.size)
        start = min(self.parallel.rank * share, length)
        return slice(first + start, first + min(start + share, length))

    def _read(self, entry: TensorEntry, parts: list[slice]) -> Tensor:
        values = read_tensor(entry, *parts) if len(parts) > 1 else read_tensor(entry, columns=parts[0])
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def _padded(self, share: Tensor, shape: tuple[int, ...], shard: int | None) -> Tensor:
        return share if shard is None else pad(share, shard, share_length(shape[shard], self.parallel.size))


def pad(tensor: Tensor, dim: int, length: int) -> Tensor:
    """`tensor` with zeros at the end of `dim`, up to `length`."""
    lacking = length - tensor.shape[dim]
    after = [0, 0] * (tensor.dim() - 1 - dim) + [0, lacking]
    return functional.pad(tensor, after) if lacking else tensor
