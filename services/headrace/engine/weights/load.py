"""Weights: hands a rank of a model its tensors, or its share of them, by name, as torch's.

A share is read alone, never the whole tensor around it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.parallel import ALONE, Parallel, share_length
from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.source import Inventory
from headrace.modelfiles.files import ModelFiles, TensorEntry

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_CPU = torch.device("cpu")


class Weights:
    """See Source. The tensors of a model's files, decoded when they are asked for. `parallel` is whose shares they are,
    and `device` where they are put, one after the other."""

    def __init__(
        self, files: ModelFiles, dtype: torch.dtype, parallel: Parallel = ALONE, *, device: torch.device = _CPU
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._parallel = parallel
        self._inventory = Inventory(files)

    @property
    def ranks(self) -> int:
        return self._parallel.size

    def matrix(self, name: str, shape: tuple[int, int], shard: int | None = None) -> Tensor:
        entry = self._inventory.take(name, shape)
        parts = [slice(None)] * 2
        if shard is not None:
            parts[shard] = self._share(0, shape[shard])
        read = self._read(entry, *parts)
        return read if shard is None else pad(read, shard, share_length(shape[shard], self.ranks))

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Tensor:
        return torch.cat([self.matrix(name, shape, 0) for name, shape in zip(names, shapes, strict=True)])

    def fused(self, name: str, sections: Sequence[int], columns: int) -> Tensor:
        entry = self._inventory.take(name, (sum(sections), columns))
        shares: list[Tensor] = []
        start = 0
        for rows in sections:
            part = self._read(entry, self._share(start, rows))
            shares.append(pad(part, 0, share_length(rows, self.ranks)))
            start += rows
        return torch.cat(shares)

    def own_rows(self, whole: Tensor) -> Tensor:
        if self.ranks == 1:
            return whole
        return pad(whole[self._share(0, len(whole))], 0, share_length(len(whole), self.ranks))

    def vector(self, name: str, length: int) -> Tensor:
        return self._read(self._inventory.take(name, (length,)))

    def joined(self, names: Sequence[str], lengths: Sequence[int]) -> Tensor:
        shares: list[Tensor] = []
        for name, length in zip(names, lengths, strict=True):
            share = self._read(self._inventory.take(name, (length,)), columns=self._share(0, length))
            shares.append(pad(share, 0, share_length(length, self.ranks)))
        return torch.cat(shares)

    def one_plus(self, vector: Tensor) -> Tensor:
        return 1.0 + vector.float()

    def per_head(self, vectors: Sequence[tuple[Tensor, int]]) -> Tensor:
        return torch.cat([vector.expand(heads, -1) for vector, heads in vectors])

    def finish(self, ignorable: frozenset[str]) -> None:
        self._inventory.finish(ignorable)

    def _share(self, first: int, length: int) -> slice:
        share = share_length(length, self.ranks)
        start = min(self._parallel.rank * share, length)
        return slice(first + start, first + min(start + share, length))

    def _read(self, entry: TensorEntry, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor:
        return torch.tensor(read_tensor(entry, rows, columns), dtype=self._dtype, device=self._device)


def pad(tensor: Tensor, dim: int, length: int) -> Tensor:
    """`tensor` with zeros at the end of `dim`, up to `length`."""
    lacking = length - tensor.shape[dim]
    after = [0, 0] * (tensor.dim() - 1 - dim) + [0, lacking]
    return functional.pad(tensor, after) if lacking else tensor
