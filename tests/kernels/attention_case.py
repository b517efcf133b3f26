"""Mixed batches for paged attention, with a trap in every place that must not be read."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.mixed_attention import mixed_attention

BLOCK = 16
DIM = 32
NAN = float("nan")
# No page is there: whoever reads a table past what it must leaves the memory.
NOWHERE = 2**30
ALL_SPLITS_AT_ONCE, SPLIT_AFTER_SPLIT = 1 << 30, 0


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over pages whose unused slots, and pages that are nobody's, are NaN. spans: (start, count) of each."""

    spans: tuple[tuple[int, int], ...]
    queries: Tensor
    pages: Tensor
    table: Tensor
    first_row: Tensor
    positions: Tensor
    window: int = 0
    softcap: float = 0.0

    def run(self, split_tokens: int = 32, *, scratch_bytes: int = ALL_SPLITS_AT_ONCE, tile_rows: int = 16) -> Tensor:
        out = torch.full_like(self.queries, NAN)
        mixed_attention(
            self.queries,
            self.pages,
            self.table,
            self.first_row,
            self.positions,
            scale=self.queries.shape[-1] ** -0.5,
            window=self.window,
            softcap=self.softcap,
            out=out,
            tile_rows=tile_rows,
            split_tokens=split_tokens,
            scratch_bytes=scratch_bytes,
        )
        return out

    def expected(self) -> Tensor:
        """What the reference says, computed on the CPU: it takes thousands of tiny operations."""
        queries, pages, table, first_row, positions = (
            one.cpu() for one in (self.queries, self.pages, self.table, self.first_row, self.positions)
        )
        out = torch.full_like(queries, NAN)
        scale = queries.shape[-1] ** -0.5
        options = {"scale": scale, "window": self.window, "softcap": self.softcap}
        reference.mixed_attention(queries, pages, table, first_row, positions, out=out, **options)
        return out.to(self.queries.device)

    def rows(self, index: int) -> slice:
        return slice(int(self.first_row[index]), int(self.first_row[index + 1]))

    def part(self, index: int, begin: int, end: int) -> "Case":
        """Queries begin .. end - 1 of one sequence alone, with a table no wider than they need."""
        start, first = self.spans[index][0] + begin, self.rows(index).start
        width = -(-(start + end - begin) // self.pages.shape[3])
        rows = slice(first + begin, first + end)
        return replace(
            self,
            spans=((start, end - begin),),
            queries=self.queries[rows],
            table=self.table[index : index + 1, :width],
            first_row=torch.tensor([0, end - begin], dtype=torch.int32, device=self.table.device),
            positions=self.positions[rows],
        )


def decoding(*lengths: int) -> tuple[tuple[int, int], ...]:
    """Spans of one token each, the last of contexts of these lengths; 0 is a padded row."""
    return tuple((length - 1, 1) for length in lengths)


def make_case(
    spans: tuple[tuple[int, int], ...],
    device: torch.device,
    *,
    group: int = 1,
    kv_heads: int = 1,
    dim: int = DIM,
    block: int = BLOCK,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    softcap: float = 0.0,
    padding: int = 0,
) -> Case:
    """Sequences stand in pages in a shuffled order; table entries of pages that nobody sees point far outside the pool.

    padding: rows behind the last sequence's, of NaN.
    """
    noise = torch.Generator().manual_seed(len(spans) * 100 + group)
    needed = [-(-(start + count) // block) for start, count in spans]
    order = torch.randperm(sum(needed) + 2, generator=noise).tolist()
    pages = torch.full((len(order), kv_heads, 2, block, dim), NAN)
    table = torch.full((len(spans), max(needed, default=0) + 1), NOWHERE)
    for row, (start, count) in enumerate(spans):
        first = max(0, start - window + 1) if window else 0
        for token in range(first, start + count):
            if token == first or token % block == 0:
                table[row, token // block] = order.pop()
            page = int(table[row, token // block])
            pages[page, :, :, token % block] = torch.randn((kv_heads, 2, dim), generator=noise)
    positions = [start + index for start, count in spans for index in range(count)]
    queries = torch.randn((len(positions), kv_heads * group, dim), generator=noise)
    queries = torch.cat((queries, torch.full((padding, *queries.shape[1:]), NAN)))
    counts = torch.tensor([0, *(count for _, count in spans)])
    return Case(
        spans,
        queries.to(device, dtype),
        pages.to(device, dtype),
        table.to(device, torch.int32),
        counts.cumsum(0).to(device, torch.int32),
        torch.tensor(positions + [-1] * padding, dtype=torch.int32, device=device),
        window,
        softcap,
    )
