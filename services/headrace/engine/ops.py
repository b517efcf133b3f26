"""Tensor operations of a model's forward pass: the one place that picks kernels.

Owns the arithmetic on tensors, in plain torch. It knows no weights' names, sequences or schedule.
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

    first_token: the batch's first row among the step's tokens. gather: rows of PagedKv that hold the context,
    [K,V][sequence][kv head][page]. mask: [batch, 1, rows or 1, tokens], True where a query may look.
    """

    first_token: int
    batch: int
    rows: int
    gather: Tensor
    mask: Tensor


class PagedKv:
    """The KV pages of all layers as tensors over the page memory.

    `heads[layer]` is [block x kv head x 2, token x dim] for gathering, `slots[layer]` is
    [block x kv head x 2 x token, dim] for writing single tokens.
    """

    def __init__(self, memory: Tensor, layout: KvLayout, dtype: torch.dtype) -> None:
        """memory: uint8 of shape [layers, blocks, page_bytes]."""
        values = memory.view(dtype)
        self.layout = layout
        self.heads = values.view(layout.layers, -1, layout.block_tokens * layout.head_dim)
        self.slots = values.view(layout.layers, -1, layout.head_dim)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [token, kv head, dim] into `slots`, rows in the order [token, kv head, K/V]."""
        both = torch.stack((keys, values), dim=2)
        self.slots[layer].index_copy_(0, slots, both.view(-1, self.layout.head_dim))


def attention(queries: Tensor, kv: PagedKv, layer: int, contexts: list[Context], rows: int) -> Tensor:
    """Grouped-query attention of a step's tokens over their paged contexts.

    queries: [token, head, dim]. Returns [rows, head x dim]; rows past the last token are zero.
    """
    out = queries.new_zeros(rows, queries.shape[1] * queries.shape[2])
    for context in contexts:
        last = context.first_token + context.batch * context.rows
        out[context.first_token : last] = _attend(queries[context.first_token : last], kv, layer, context)
    return out


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
