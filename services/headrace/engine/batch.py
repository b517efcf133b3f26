"""A batch: the spans of one step, and the tensors of it that torch's layers use.

Owns the translation from pages and positions to rows of the KV tensors. It knows no weights and computes no attention.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Protocol

import torch
from torch import Tensor

from headrace.core.blocks import blocks_for
from headrace.core.layout import KvLayout
from headrace.engine import ops
from headrace.engine.rows import padded_rows
from headrace.engine.runner import Span

_CPU = torch.device("cpu")


class Step(ops.Attending, Protocol):
    """What a decoder must know of a step, all of it tensors where the model lies. tokens: the first of `rows` rows."""

    @property
    def tokens(self) -> int: ...

    @property
    def ids(self) -> Tensor:
        """[rows]"""
        ...

    @property
    def positions(self) -> Tensor:
        """[tokens]"""
        ...

    @property
    def slots(self) -> ops.Slots: ...


@dataclass(frozen=True)
class Batch:
    """tokens: real ones, the first of `rows` rows. page_multiple: contexts' pages are filled up to a multiple of it.

    A tensor is made when it is first asked for, on `device`, once for all layers: who computes from the spans alone
    pays for none.
    """

    spans: list[Span]
    tokens: int
    rows: int
    layout: KvLayout
    page_multiple: int
    device: torch.device = _CPU

    @cached_property
    def ids(self) -> Tensor:
        """[rows]"""
        ids = list(chain.from_iterable(span.tokens[span.start : span.start + span.count] for span in self.spans))
        return torch.tensor(ids + [0] * (self.rows - len(ids)), device=self.device)

    @cached_property
    def positions(self) -> Tensor:
        """[tokens]"""
        return torch.tensor(_positions(self.spans), device=self.device)

    @cached_property
    def slots(self) -> ops.Slots:
        slots = _slots(self.spans, _positions(self.spans), self.layout)
        return ops.Slots(slots.tokens.to(self.device), slots.rows.to(self.device))

    @cached_property
    def contexts(self) -> list[ops.Context]:
        """The attention calls that cover all tokens, for torch on the CPU."""
        return list(_contexts(self.spans, self.layout, self.page_multiple))

    @cached_property
    def launch(self) -> ops.Launch:
        """The same for one launch that covers them all."""
        return _launch(self.spans, self.rows, self.device)


def make_batch(spans: list[Span], layout: KvLayout, page_multiple: int = 1, device: torch.device = _CPU) -> Batch:
    """Spans of one token must come first: they are attended to in one call, longer ones in one call each."""
    tokens = sum(span.count for span in spans)
    return Batch(spans, tokens, padded_rows(tokens), layout, page_multiple, device)


def _positions(spans: list[Span]) -> list[int]:
    return list(chain.from_iterable(range(span.start, span.start + span.count) for span in spans))


def _slots(spans: list[Span], positions: list[int], layout: KvLayout) -> ops.Slots:
    size = layout.block_tokens
    blocks = torch.tensor(
        [span.blocks[position // size] for span in spans for position in range(span.start, span.start + span.count)]
    )
    places = torch.tensor(positions) % size
    pairs = torch.arange(layout.kv_heads * 2)
    rows = (blocks[:, None] * len(pairs) + pairs) * size + places[:, None]
    return ops.Slots(blocks * size + places, rows.flatten())


def _contexts(spans: list[Span], layout: KvLayout, page_multiple: int) -> Iterable[ops.Context]:
    single = [span for span in spans if span.count == 1]
    if single:
        yield _context(0, single, layout, page_multiple)
    first = len(single)
    for span in spans[len(single) :]:
        yield _context(first, [span], layout, page_multiple)
        first += span.count


def _context(first: int, spans: list[Span], layout: KvLayout, page_multiple: int) -> ops.Context:
    """Spans of equal count. Shorter contexts are padded with their own first page, which masks hide."""
    rows, size = spans[0].count, layout.block_tokens
    pages = max(blocks_for(span.start + rows, size) for span in spans)
    pages = -(-pages // page_multiple) * page_multiple
    table = torch.tensor([(span.blocks + [span.blocks[0]] * pages)[:pages] for span in spans])
    side = torch.arange(2)[:, None, None, None]
    head = torch.arange(layout.kv_heads)[None, None, :, None]
    gather = (table[None, :, None, :] * layout.kv_heads + head) * 2 + side
    last = torch.tensor([span.start for span in spans])[:, None] + torch.arange(rows)
    return ops.Context(first, len(spans), rows, table, last[:, -1] + 1, gather.flatten(), last)


def _launch(spans: list[Span], rows: int, device: torch.device) -> ops.Launch:
    width = max(len(span.blocks) for span in spans)
    positions = _positions(spans)
    table = [span.blocks + [0] * (width - len(span.blocks)) for span in spans]
    first_row = [0, *accumulate(span.count for span in spans)]
    return ops.Launch(
        table=torch.tensor(table, dtype=torch.int32, device=device),
        first_row=torch.tensor(first_row, dtype=torch.int32, device=device),
        positions=torch.tensor(positions + [-1] * (rows - len(positions)), dtype=torch.int32, device=device),
        several=any(span.count > 1 for span in spans),
    )
