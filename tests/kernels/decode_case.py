"""Batches for paged decode attention, with a trap in every place that must not be read."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.paged_decode import paged_decode

BLOCK = 16
DIM = 32
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over pages whose unused slots, and pages that are nobody's, are NaN."""

    queries: Tensor
    pages: Tensor
    table: Tensor
    lengths: Tensor

    def run(self, split_tokens: int = 32) -> Tensor:
        out = torch.full_like(self.queries, NAN)
        scale = self.queries.shape[-1] ** -0.5
        paged_decode(
            self.queries, self.pages, self.table, self.lengths, scale=scale, out=out, split_tokens=split_tokens
        )
        return out

    def expected(self) -> Tensor:
        """What the reference says, computed on the CPU: it takes thousands of tiny operations."""
        queries, pages, table, lengths = (one.cpu() for one in (self.queries, self.pages, self.table, self.lengths))
        out = torch.full_like(queries, NAN)
        reference.paged_decode(queries, pages, table, lengths, scale=queries.shape[-1] ** -0.5, out=out)
        return out.to(self.queries.device)

    def alone(self, row: int) -> "Case":
        """One sequence with a table no wider than it needs."""
        width = -(-int(self.lengths[row]) // self.pages.shape[3])
        one = slice(row, row + 1)
        return replace(self, queries=self.queries[one], table=self.table[one, :width], lengths=self.lengths[one])


def make_case(
    lengths: tuple[int, ...],
    device: torch.device,
    *,
    group: int = 1,
    kv_heads: int = 2,
    dim: int = DIM,
    block: int = BLOCK,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Sequences stand in pages in a shuffled order; table entries past their last page point far outside the pool."""
    noise = torch.Generator().manual_seed(len(lengths) * 100 + group)
    needed = [-(-length // block) for length in lengths]
    order = torch.randperm(sum(needed) + 2, generator=noise).tolist()
    pages = torch.full((len(order), kv_heads, 2, block, dim), NAN)
    table = torch.full((len(lengths), max(needed, default=0) + 1), 2**30)
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        for index in range(count):
            page = table[row, index] = order.pop()
            filled = min(block, length - index * block)
            pages[page, :, :, :filled] = torch.randn((kv_heads, 2, filled, dim), generator=noise)
    queries = torch.randn((len(lengths), kv_heads * group, dim), generator=noise)
    return Case(
        queries.to(device, dtype),
        pages.to(device, dtype),
        table.to(device, torch.int32),
        torch.tensor(lengths, dtype=torch.int32, device=device),
    )
