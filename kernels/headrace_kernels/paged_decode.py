"""Paged decode attention: one query token a sequence over its KV pages, in splits of a fixed number of tokens.

A context is cut into splits of `split_tokens`, each attended to by its own program; a second pass joins a sequence's
splits in order. Where the cuts fall and in which order sums are taken depends on the sequence's own length alone, so
a sequence's output is bit-equal alone, in any batch and under any width of the block table.
`reference.paged_decode` is the specification.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from headrace_kernels.numerics import FP_FUSION
from headrace_kernels.requires import (
    require,
    require_dense,
    require_dense_rows,
    require_floats,
    require_indices,
    require_one_device,
    require_shape,
)

SPLIT_TOKENS = 256
_TILE_TOKENS = 64
# The smallest side of a matrix product on tensor cores.
_LEAST_SIDE = 16
_LOG2_E = 1.4426950408889634


def paged_decode(
    queries: Tensor,
    pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    out: Tensor,
    split_tokens: int = SPLIT_TOKENS,
) -> None:
    """See reference.paged_decode. split_tokens: a power of two of 16 or more; part of the numerics, so leave it be."""
    _check(queries, pages, table, lengths, out, split_tokens)
    batch, heads, dim = queries.shape
    kv_heads, block_tokens = pages.shape[1], pages.shape[3]
    splits = max(1, triton.cdiv(table.shape[1] * block_tokens, split_tokens))
    sums = torch.empty((batch, heads, splits, dim), dtype=torch.float32, device=queries.device)
    norms = torch.empty((batch, heads, splits, 2), dtype=torch.float32, device=queries.device)
    if batch == 0:
        return
    padded_dim = max(_LEAST_SIDE, triton.next_power_of_2(dim))
    _attend_split[(batch, kv_heads, splits)](
        queries,
        pages,
        table,
        lengths,
        sums,
        norms,
        scale * _LOG2_E,
        queries.stride(0),
        queries.stride(1),
        table.stride(0),
        splits,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PADDED=max(_LEAST_SIDE, triton.next_power_of_2(heads // kv_heads)),
        DIM=dim,
        DIM_PADDED=padded_dim,
        BLOCK=block_tokens,
        SPLIT=split_tokens,
        TILE=min(split_tokens, _TILE_TOKENS),
        # 16-bit floats fit into tf32 without loss, so only float32 needs the slow exact product.
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        enable_fp_fusion=FP_FUSION,
    )
    _join_splits[(batch, heads)](
        sums,
        norms,
        lengths,
        out,
        out.stride(0),
        out.stride(1),
        splits,
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=padded_dim,
        SPLIT=split_tokens,
        enable_fp_fusion=FP_FUSION,
    )


def _check(queries: Tensor, pages: Tensor, table: Tensor, lengths: Tensor, out: Tensor, split_tokens: int) -> None:
    require(queries.dim() == 3, f"queries must be [batch, heads, dim], not {tuple(queries.shape)}.")
    batch, heads, dim = queries.shape
    require(
        pages.dim() == 5 and pages.shape[2] == 2 and pages.shape[4] == dim,
        f"pages must be [num_blocks, kv_heads, 2, block_tokens, {dim}], not {tuple(pages.shape)}.",
    )
    require(heads % pages.shape[1] == 0, f"{heads} heads are not a multiple of {pages.shape[1]} KV heads.")
    require(
        table.dim() == 2 and table.shape[0] == batch,
        f"table must be [{batch}, max_blocks], not {tuple(table.shape)}.",
    )
    require_shape("lengths", lengths, (batch,))
    require_shape("out", out, (batch, heads, dim))
    require(
        split_tokens >= _LEAST_SIDE and split_tokens & (split_tokens - 1) == 0,
        f"split_tokens must be a power of two of at least {_LEAST_SIDE}, not {split_tokens}.",
    )
    require_floats(queries=queries, pages=pages, out=out)
    require_indices("table", table)
    require_indices("lengths", lengths)
    require_dense("pages", pages)
    require_dense("lengths", lengths)
    for name, rows in (("queries", queries), ("table", table), ("out", out)):
        require_dense_rows(name, rows)
    require_one_device(queries=queries, pages=pages, table=table, lengths=lengths, out=out)


@triton.jit(do_not_specialize=["table_stride", "splits"])
def _attend_split(
    queries,
    pages,
    table,
    lengths,
    sums,
    norms,
    scale,
    query_stride,
    head_stride,
    table_stride,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One (sequence, KV head, split): running softmax over the split's tiles for the group's query heads.

    Leaves unnormalised sums [dim], and their maximum and weight, for `_join_splits`. scale: for powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)
    if split * SPLIT < length:
        member = tl.arange(0, GROUP_PADDED)
        dim = tl.arange(0, DIM_PADDED)
        here = (member < GROUP)[:, None] & (dim < DIM)[None, :]
        head = kv_head * GROUP + member
        query = tl.load(
            queries + row * query_stride + head[:, None] * head_stride + dim[None, :], mask=here, other=0.0
        ).to(tl.float32)
        maximum = tl.full((GROUP_PADDED,), float("-inf"), tl.float32)
        weight = tl.full((GROUP_PADDED,), 0.0, tl.float32)
        total = tl.full((GROUP_PADDED, DIM_PADDED), 0.0, tl.float32)
        for start in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, length), TILE):
            token = start + tl.arange(0, TILE)
            known = token < length
            block = tl.load(table + row * table_stride + token // BLOCK, mask=known, other=0).to(tl.int64)
            key_row = ((block * KV_HEADS + kv_head) * 2 * BLOCK + token % BLOCK) * DIM
            place = key_row[:, None] + dim[None, :]
            inside = known[:, None] & (dim < DIM)[None, :]
            key = tl.load(pages + place, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(pages + place + BLOCK * DIM, mask=inside, other=0.0).to(tl.float32)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            score = tl.where(known[None, :], score, float("-inf"))
            highest = tl.maximum(maximum, tl.max(score, 1))
            shrink = tl.exp2(maximum - highest)
            share = tl.exp2(score - highest[:, None])
            weight = weight * shrink + tl.sum(share, 1)
            total = total * shrink[:, None] + tl.dot(share, value, input_precision=PRECISION)
            maximum = highest
        part = (row * KV_HEADS * GROUP + head) * splits + split
        tl.store(sums + part[:, None] * DIM + dim[None, :], total, mask=here)
        tl.store(norms + part * 2, maximum, mask=member < GROUP)
        tl.store(norms + part * 2 + 1, weight, mask=member < GROUP)


@triton.jit(do_not_specialize=["splits"])
def _join_splits(
    sums,
    norms,
    lengths,
    out,
    out_stride,
    head_stride,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One (sequence, head): its splits joined one after the other; a sequence of no tokens gets zeros."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths + row)
    dim = tl.arange(0, DIM_PADDED)
    here = dim < DIM
    maximum = float("-inf")
    weight = 0.0
    total = tl.full((DIM_PADDED,), 0.0, tl.float32)
    for split in range(0, tl.cdiv(length, SPLIT)):
        part = (row * HEADS + head) * splits + split
        split_maximum = tl.load(norms + part * 2)
        highest = tl.maximum(maximum, split_maximum)
        shrink = tl.exp2(maximum - highest)
        share = tl.exp2(split_maximum - highest)
        weight = weight * shrink + tl.load(norms + part * 2 + 1) * share
        total = total * shrink + tl.load(sums + part * DIM + dim, mask=here, other=0.0) * share
        maximum = highest
    result = total / tl.where(length > 0, weight, 1.0)
    tl.store(out + row * out_stride + head * head_stride + dim, result.to(out.dtype.element_ty), mask=here)
