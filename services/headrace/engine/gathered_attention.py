"""Attention with torch: pages are gathered into one tensor a call, and what a query must not see is masked.

Owns the arithmetic of one Context. In batch-invariant mode the products are those of tiled_attention.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine import tiled_attention
from headrace.engine.activations import soft_cap

if TYPE_CHECKING:
    from headrace.engine.models.attention import AttentionSpec
    from headrace.engine.ops import Context, PagedKv


def attend(queries: Tensor, kv: "PagedKv", layer: int, spec: "AttentionSpec", context: "Context") -> Tensor:
    """queries: [batch x rows of the context, head, dim]; returns [..., head x dim].

    The queries that share one KV head count as rows of one call, so pages are gathered once a KV head.
    """
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


def _attend_masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, spec: "AttentionSpec") -> Tensor:
    """Soft-capped scores (Gemma 2, arXiv 2408.00118) are float32 between the two products."""
    if not spec.softcap:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=spec.scale)
    scores = (queries @ keys.transpose(2, 3)).float() * spec.scale
    weights = soft_cap(scores, spec.softcap).masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.to(values.dtype) @ values
