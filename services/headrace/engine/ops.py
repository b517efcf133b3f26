"""Tensor operations of a model's forward pass: the one place that picks kernels.

Owns the arithmetic on KV pages: Triton's kernels where a tensor lies on a GPU and there is one, plain torch elsewhere.
It knows no weights, sequences or schedule.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.layout import KvLayout
from headrace.engine import tiled_attention


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is a layer's own in its attention.

    scale: factor of query x key. window: a query sees the last `window` tokens, itself among them; 0: all of them.
    softcap: scores s become softcap x tanh(s / softcap); 0: they stay.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """One attention call of a step, the same for every layer: `batch` sequences of `rows` query tokens each.

    first_token: the batch's first row among the step's tokens. table: [batch, blocks]; lengths: [batch] tokens.
    gather: rows of PagedKv.heads that hold the context, [K,V][sequence][kv head][page].
    positions: [batch, rows], of the queries. Layers of the same window share a mask, made for the first of them.
    """

    first_token: int
    batch: int
    rows: int
    table: Tensor
    lengths: Tensor
    gather: Tensor
    positions: Tensor
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _stale: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def stale(self, tokens: int) -> tuple[Tensor, Tensor]:
        """(sequence, token) of what an earlier owner may have left in the pages of `table`, which hold `tokens` tokens.

        It stands in a context's last page. Padding repeats the first one, which is full unless it is the last.
        """
        if not self._stale:
            size, lengths = tokens // self.table.shape[1], self.lengths[:, None]
            places = torch.arange(tokens, device=self.lengths.device)
            in_last_page = (places < (lengths + size - 1) // size * size) | (lengths < size)
            sequences, behind = ((places >= lengths) & in_last_page).nonzero(as_tuple=True)
            self._stale.append((sequences, behind))
        return self._stale[0]

    def mask(self, tokens: int, window: int, group: int) -> Tensor:
        """[batch, 1, group x rows, tokens], True where a query may look; of one row a sequence 1 for group x rows.

        tokens: what the pages of `table` hold. group: query heads of a KV head.
        """
        key = (window, 1 if self.rows == 1 else group)
        if key not in self._masks:
            self._masks[key] = self._mask(tokens, window).repeat(1, 1, key[1], 1)
        return self._masks[key]

    def _mask(self, tokens: int, window: int) -> Tensor:
        places, last = torch.arange(tokens, device=self.positions.device), self.positions[:, None, :, None]
        seen = places <= last
        return seen & (places > last - window) if window else seen


@dataclass(frozen=True, slots=True)
class Slots:
    """Where a step's tokens are written, no two alike.

    tokens: [token], block x block_tokens + place in the block. rows: the same as rows of PagedKv.rows,
    [token x kv head x 2].
    """

    tokens: Tensor
    rows: Tensor


class PagedKv:
    """The KV pages of all layers as tensors over the page memory.

    `pages[layer]` is [block, kv head, K/V, token, dim] for kernels, `heads[layer]` is
    [block x kv head x 2, token x dim] for gathering, `rows[layer]` is [block x kv head x 2 x token, dim] for
    writing single tokens.
    """

    def __init__(self, memory: Tensor, layout: KvLayout, dtype: torch.dtype, *, batch_invariant: bool = False) -> None:
        """memory: uint8 of shape [layers, blocks, page_bytes]. batch_invariant: how `attention` reads the pages."""
        values = memory.view(dtype)
        self.layout = layout
        self.batch_invariant = batch_invariant
        self.pages = values.view(layout.layers, -1, layout.kv_heads, 2, layout.block_tokens, layout.head_dim)
        self.heads = values.view(layout.layers, -1, layout.block_tokens * layout.head_dim)
        self.rows = values.view(layout.layers, -1, layout.head_dim)

    @property
    def page_multiple(self) -> int:
        """What the number of pages of a context must be a multiple of."""
        size = self.layout.block_tokens
        return math.lcm(tiled_attention.TILE_TOKENS, size) // size if self.batch_invariant else 1

    def write(self, layer: int, slots: Slots, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [token, kv head, dim] into `slots`."""
        if picks_triton(keys):
            from headrace_kernels.kv_write import kv_write  # noqa: PLC0415 - absent on machines without a GPU

            kv_write(keys, values, self.pages[layer], slots.tokens)
        else:
            both = torch.stack((keys, values), dim=2)
            self.rows[layer].index_copy_(0, slots.rows, both.view(-1, self.layout.head_dim))


def picks_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels work on `tensor`, or torch."""
    return tensor.is_cuda


def attention(
    queries: Tensor, kv: PagedKv, layer: int, spec: AttentionSpec, contexts: list[Context], *, rows: int
) -> Tensor:
    """Grouped-query attention of a step's tokens over their paged contexts.

    queries: [token, head, dim]. Returns [rows, head x dim]; rows past the last token are zero.
    """
    out = queries.new_zeros(rows, queries.shape[1] * queries.shape[2])
    plain = not spec.window and not spec.softcap and not kv.batch_invariant
    for context in contexts:
        these = slice(context.first_token, context.first_token + context.batch * context.rows)
        if context.rows == 1 and plain and picks_triton(queries):
            _decode(queries[these], kv, layer, spec, context, out=out[these])
        else:
            out[these] = _attend(queries[these], kv, layer, spec, context)
    return out


def _decode(queries: Tensor, kv: PagedKv, layer: int, spec: AttentionSpec, context: Context, *, out: Tensor) -> None:
    from headrace_kernels.paged_decode import paged_decode  # noqa: PLC0415 - absent on machines without a GPU

    paged_decode(
        queries, kv.pages[layer], context.table, context.lengths, scale=spec.scale, out=out.view(queries.shape)
    )


def _attend(queries: Tensor, kv: PagedKv, layer: int, spec: AttentionSpec, context: Context) -> Tensor:
    """The queries that share one KV head count as rows of one call, so pages are gathered once a KV head."""
    kv_heads, dim = kv.layout.kv_heads, kv.layout.head_dim
    group = queries.shape[1] // kv_heads
    grouped = queries.reshape(context.batch, context.rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(context.batch, kv_heads, group * context.rows, dim)
    both = kv.heads[layer].index_select(0, context.gather).view(2, context.batch, kv_heads, -1, dim)
    # It is masked, and would be felt all the same where it is not finite: 0 x NaN is NaN.
    sequences, tokens = context.stale(both.shape[3])
    both[:, sequences, :, tokens] = 0
    keys, values = both
    if kv.batch_invariant:
        attended = tiled_attention.attend(grouped, keys, values, context.positions.repeat(1, group), spec)
    else:
        attended = _attend_masked(grouped, keys, values, context.mask(keys.shape[2], spec.window, group), spec)
    ungrouped = attended.view(context.batch, kv_heads, group, context.rows, dim).permute(0, 3, 1, 2, 4)
    return ungrouped.reshape(context.batch * context.rows, -1)


def _attend_masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    """Soft-capped scores (Gemma 2, arXiv 2408.00118) are float32 between the two products."""
    if not spec.softcap:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=spec.scale)
    scores = (queries @ keys.transpose(2, 3)).float() * spec.scale
    weights = soft_cap(scores, spec.softcap).masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.to(values.dtype) @ values


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """cap x tanh(values / cap)."""
    return (values / cap).tanh() * cap


def pack_pages(pool: Tensor, blocks: Tensor, unit: Tensor) -> None:
    """Copy whole blocks of all layers, `pool` [layers, blocks, ...page], into `unit` [layers, len(blocks), ...page].

    Both are contiguous and of one dtype. blocks: integers, ids within the pool, no two alike.
    """
    if picks_triton(pool):
        from headrace_kernels import page_pack  # noqa: PLC0415 - absent on machines without a GPU

        page_pack.pack_pages(pool, blocks, unit)
    else:
        torch.index_select(pool, 1, blocks, out=unit)


def unpack_pages(unit: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """The way back: set whole blocks of `pool` from `unit`. See pack_pages."""
    if picks_triton(pool):
        from headrace_kernels import page_pack  # noqa: PLC0415 - absent on machines without a GPU

        page_pack.unpack_pages(unit, pool, blocks)
    else:
        pool.index_copy_(1, blocks, unit)
