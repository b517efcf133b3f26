"""Tensor operations of a model's forward pass: the one place that picks kernels.

Owns the arithmetic on tensors: Triton's kernels where a tensor lies on a GPU, plain torch elsewhere. It knows no
weights' names, sequences or schedule.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.layout import KvLayout

# Rows of a matrix product are padded to a multiple of this: fp32 products on CPUs choose their blocking, and with it
# their rounding, by the number of rows, and agree for multiples of 8.
ROW_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class Context:
    """One attention call of a step, the same for every layer: `batch` sequences of `rows` query tokens each.

    first_token: the batch's first row among the step's tokens. table: [batch, blocks]; lengths: [batch] tokens.
    gather: rows of PagedKv.heads that hold the context, [K,V][sequence][kv head][page].
    mask: [batch, 1, rows or 1, tokens], True where a query may look.
    """

    first_token: int
    batch: int
    rows: int
    table: Tensor
    lengths: Tensor
    gather: Tensor
    mask: Tensor


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

    def __init__(self, memory: Tensor, layout: KvLayout, dtype: torch.dtype) -> None:
        """memory: uint8 of shape [layers, blocks, page_bytes]."""
        values = memory.view(dtype)
        self.layout = layout
        self.pages = values.view(layout.layers, -1, layout.kv_heads, 2, layout.block_tokens, layout.head_dim)
        self.heads = values.view(layout.layers, -1, layout.block_tokens * layout.head_dim)
        self.rows = values.view(layout.layers, -1, layout.head_dim)

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


def attention(queries: Tensor, kv: PagedKv, layer: int, contexts: list[Context], rows: int) -> Tensor:
    """Grouped-query attention of a step's tokens over their paged contexts.

    queries: [token, head, dim]. Returns [rows, head x dim]; rows past the last token are zero.
    """
    out = queries.new_zeros(rows, queries.shape[1] * queries.shape[2])
    for context in contexts:
        these = slice(context.first_token, context.first_token + context.batch * context.rows)
        if context.rows == 1 and picks_triton(queries):
            _decode(queries[these], kv, layer, context, out[these])
        else:
            out[these] = _attend(queries[these], kv, layer, context)
    return out


def _decode(queries: Tensor, kv: PagedKv, layer: int, context: Context, out: Tensor) -> None:
    from headrace_kernels.paged_decode import paged_decode  # noqa: PLC0415 - absent on machines without a GPU

    paged_decode(
        queries,
        kv.pages[layer],
        context.table,
        context.lengths,
        scale=queries.shape[2] ** -0.5,
        out=out.view(queries.shape),
    )


def _attend(queries: Tensor, kv: PagedKv, layer: int, context: Context) -> Tensor:
    """The queries that share one KV head count as rows of one call, so pages are gathered once a KV head."""
    kv_heads, dim = kv.layout.kv_heads, kv.layout.head_dim
    group = queries.shape[1] // kv_heads
    grouped = queries.reshape(context.batch, context.rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    keys, values = kv.heads[layer].index_select(0, context.gather).view(2, context.batch, kv_heads, -1, dim)
    mask = context.mask if context.rows == 1 else context.mask.repeat(1, 1, group, 1)
    attended = functional.scaled_dot_product_attention(
        grouped.reshape(context.batch, kv_heads, group * context.rows, dim), keys, values, attn_mask=mask
    )
    ungrouped = attended.view(context.batch, kv_heads, group, context.rows, dim).permute(0, 3, 1, 2, 4)
    return ungrouped.reshape(context.batch * context.rows, -1)


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


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, in float32 inside."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(hidden.dtype)


def rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary position embedding over halves. states: [token, head, dim]; cosines, sines: [token, 1, dim]."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat((-second, first), dim=-1) * sines


def rope_tables(theta: float, dim: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0..length, [position, 1, dim], computed in float32."""
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) x up, of the two halves of a row."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def padded_rows(count: int) -> int:
    """`count` rounded up to ROW_MULTIPLE."""
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE
