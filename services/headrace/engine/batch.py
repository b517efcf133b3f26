"""A batch: the spans of one step as tensors, made once and used by every layer.

Owns the translation from pages and positions to rows of the KV tensors. It knows no weights and computes no attention.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from headrace.core.blocks import blocks_for
from headrace.core.layout import KvLayout
from headrace.engine import ops
from headrace.engine.rows import padded_rows
from headrace.engine.runner import Span


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens: real ones, the first of `rows` rows. ids: [rows]; positions: [tokens].

    contexts: the attention calls that cover all tokens. spans: what it was made of.
    """

    spans: list[Span]
    tokens: int
    rows: int
    ids: Tensor
    positions: Tensor
    slots: ops.Slots
    contexts: list[ops.Context]


def make_batch(spans: list[Span], layout: KvLayout, page_multiple: int = 1) -> Batch:
    """Spans of one token must come first: they are attended to in one call, longer ones in one call each.

    page_multiple: the contexts' pages are filled up to a multiple of it.
    """
    ids = list(chain.from_iterable(span.tokens[span.start : span.start + span.count] for span in spans))
    positions = list(chain.from_iterable(range(span.start, span.start + span.count) for span in spans))
    rows = padded_rows(len(ids))
    return Batch(
        spans=spans,
        tokens=len(ids),
        rows=rows,
        ids=torch.tensor(ids + [0] * (rows - len(ids))),
        positions=torch.tensor(positions),
        slots=_slots(spans, positions, layout),
        contexts=list(_contexts(spans, layout, page_multiple)),
    )


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
