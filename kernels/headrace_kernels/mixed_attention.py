"""Paged attention of a mixed batch: decode rows and prefill chunks of many sequences in one launch.

The query heads of a KV head are rows of one matrix product (as in FlashInfer, arXiv 2501.01005, section 3.2), and so
are neighbouring queries of a sequence. A context is cut into splits of `split_tokens` from position 0 on. Either every
split has its program, and a second pass joins them in order (decoding, where there are too few rows to fill a GPU), or
one program takes split after split and joins them by the same arithmetic (prefill, where partial sums would fill the
memory). Where the cuts fall and in which order sums are taken depends on a query's own position alone, so its bits are
the same alone, in any batch, under any width of the block table, in any chunk and with either pass.
`reference.mixed_attention` is the specification.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from headrace_kernels.numerics import FP_FUSION, LEAST_SIDE, LOG2_E, product_type
from headrace_kernels.requires import (
    require,
    require_dense,
    require_dense_rows,
    require_floats,
    require_indices,
    require_one_device,
    require_shape,
)
from headrace_kernels.split_softmax import attend_split, join, sequence_of

SPLIT_TOKENS = 256
# Rows of a matrix product: the fewest, and as many as prefill chunks fill.
DECODE_ROWS, PREFILL_ROWS = LEAST_SIDE, 64
# Partial sums may take this much; where they would take more, one program takes all splits of its queries.
SCRATCH_BYTES = 128 << 20
_TILE_BYTES = 64 * 128 * 2


def mixed_attention(
    queries: Tensor,
    pages: Tensor,
    table: Tensor,
    first_row: Tensor,
    positions: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: Tensor,
    tile_rows: int = DECODE_ROWS,
    split_tokens: int = SPLIT_TOKENS,
    scratch_bytes: int = SCRATCH_BYTES,
) -> None:
    """See reference.mixed_attention. No row or length is read on the host, so a launch can be captured in a graph.

    tile_rows, split_tokens: powers of two of 16 or more, part of the numerics: answers are bit-equal only among equal
    ones. scratch_bytes is not.
    """
    _check(queries, pages, table, first_row, positions, out)
    _require_power("tile_rows", tile_rows)
    _require_power("split_tokens", split_tokens)
    if not len(queries):
        return
    batch = _Batch(queries, pages, table, first_row, positions, out)
    launch = _Launch.of(batch, tile_rows, split_tokens, scratch_bytes, window)
    sums, norms = _scratch(batch, launch)
    _attend(batch, launch, sums, norms, scale, softcap)
    if launch.in_parts:
        _join(batch, launch, sums, norms)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The tensors of one call, as it takes them."""

    queries: Tensor
    pages: Tensor
    table: Tensor
    first_row: Tensor
    positions: Tensor
    out: Tensor


@dataclass(frozen=True, slots=True)
class _Launch:
    """How the work is cut. tile_queries: queries of a tile, whose heads fill its `tile_rows`. splits: of the longest
    context; in_parts: each has its program. padded_dim: a head's values, filled up to a power of two."""

    tile_rows: int
    tile_queries: int
    padded_dim: int
    split_tokens: int
    splits: int
    in_parts: bool
    window: int

    @staticmethod
    def of(batch: _Batch, tile_rows: int, split_tokens: int, scratch_bytes: int, window: int) -> "_Launch":
        rows, heads, dim = batch.queries.shape
        kv_heads, block_tokens = batch.pages.shape[1], batch.pages.shape[3]
        group = heads // kv_heads
        tile_rows = max(tile_rows, triton.next_power_of_2(group))
        splits = max(1, triton.cdiv(batch.table.shape[1] * block_tokens, split_tokens))
        in_parts = splits > 1 and rows * heads * splits * (dim + 2) * 4 <= scratch_bytes
        padded_dim = max(LEAST_SIDE, triton.next_power_of_2(dim))
        return _Launch(tile_rows, tile_rows // group, padded_dim, split_tokens, splits, in_parts, window)


def _scratch(batch: _Batch, launch: _Launch) -> tuple[Tensor, Tensor]:
    """Of each part its sum and its norms, float32: [row, head, split, dim] and [row, head, split, 2]; else nothing."""
    rows, heads, dim = batch.queries.shape
    shape = (rows, heads, launch.splits) if launch.in_parts else (0,)
    device = batch.queries.device
    sums = torch.empty((*shape, dim), dtype=torch.float32, device=device)
    return sums, torch.empty((*shape, 2), dtype=torch.float32, device=device)


def _attend(batch: _Batch, launch: _Launch, sums: Tensor, norms: Tensor, scale: float, softcap: float) -> None:
    queries, pages, table, out = batch.queries, batch.pages, batch.table, batch.out
    rows, heads, dim = queries.shape
    kv_heads, sequences = pages.shape[1], table.shape[0]
    # One tile more a sequence than its rows fill, and one for the padding: no length is known here.
    tiles = triton.cdiv(rows, launch.tile_queries) + sequences + 1
    scales = (scale / softcap if softcap else scale * LOG2_E, softcap * LOG2_E)
    strides = (*queries.stride()[:2], table.stride(0), *out.stride()[:2])
    _attend_tile[(tiles, kv_heads, launch.splits if launch.in_parts else 1)](
        *(queries, pages, table, batch.first_row, batch.positions, sums, norms, out),
        *scales,
        *(rows, sequences, launch.splits),
        *strides,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        TILE_QUERIES=launch.tile_queries,
        TILE_ROWS=launch.tile_rows,
        DIM=dim,
        DIM_PADDED=launch.padded_dim,
        BLOCK=pages.shape[3],
        SPLIT=launch.split_tokens,
        TILE=min(launch.split_tokens, _tile_tokens(launch.padded_dim, queries.element_size())),
        WINDOW=launch.window,
        CAPPED=softcap > 0,
        IN_PARTS=launch.in_parts,
        PRODUCT=product_type(_attend_tile, queries.dtype),
        enable_fp_fusion=FP_FUSION,
        num_warps=4 if launch.tile_rows <= DECODE_ROWS else 8,
        num_stages=2,
    )


def _join(batch: _Batch, launch: _Launch, sums: Tensor, norms: Tensor) -> None:
    rows, heads, dim = batch.queries.shape
    _join_parts[(rows, heads)](
        *(sums, norms, batch.first_row, batch.positions, batch.out),
        *(batch.table.shape[0], launch.splits, *batch.out.stride()[:2]),
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=launch.padded_dim,
        SPLIT=launch.split_tokens,
        WINDOW=launch.window,
        enable_fp_fusion=FP_FUSION,
    )


def _tile_tokens(padded_dim: int, value_bytes: int) -> int:
    """Tokens whose keys stand in shared memory at once: what does not fit there does not run."""
    return max(LEAST_SIDE, min(64, _TILE_BYTES // (padded_dim * value_bytes)))


def _check(queries: Tensor, pages: Tensor, table: Tensor, first_row: Tensor, positions: Tensor, out: Tensor) -> None:
    require(queries.dim() == 3, f"queries must be [row, head, dim], not {tuple(queries.shape)}.")
    rows, heads, dim = queries.shape
    require(
        pages.dim() == 5 and pages.shape[2] == 2 and pages.shape[4] == dim,
        f"pages must be [num_blocks, kv_heads, 2, block_tokens, {dim}], not {tuple(pages.shape)}.",
    )
    require(heads % pages.shape[1] == 0, f"{heads} heads are not a multiple of {pages.shape[1]} KV heads.")
    require(table.dim() == 2, f"table must be [sequence, max_blocks], not {tuple(table.shape)}.")
    require_shape("first_row", first_row, (table.shape[0] + 1,))
    require_shape("positions", positions, (rows,))
    require_shape("out", out, (rows, heads, dim))
    require_floats(queries=queries, pages=pages, out=out)
    for name, indices in (("table", table), ("first_row", first_row), ("positions", positions)):
        require_indices(name, indices)
    for name, whole in (("pages", pages), ("first_row", first_row), ("positions", positions)):
        require_dense(name, whole)
    for name, slices in (("queries", queries), ("table", table), ("out", out)):
        require_dense_rows(name, slices)
    require_one_device(queries=queries, pages=pages, table=table, first_row=first_row, positions=positions, out=out)


def _require_power(name: str, value: int) -> None:
    require(
        value >= LEAST_SIDE and value & (value - 1) == 0,
        f"{name} must be a power of two of at least {LEAST_SIDE}, not {value}.",
    )


@triton.jit(do_not_specialize=["rows", "sequences", "splits", "table_stride"])
def _attend_tile(
    queries,
    pages,
    table,
    first_row,
    positions,
    sums,
    norms,
    out,
    scale,
    softcap,
    rows,
    sequences,
    splits,
    query_stride,
    head_stride,
    table_stride,
    out_stride,
    out_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    IN_PARTS: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """One (tile of TILE_QUERIES queries, KV head, split) if IN_PARTS, which `_join_parts` joins; else all splits.

    scale, softcap: see `attend_split`.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = sequence_of(first_row, sequences, tile, TILE_QUERIES)
    first = tl.load(first_row + sequence).to(tl.int32)
    begin = first + (tile - first // TILE_QUERIES - sequence) * TILE_QUERIES
    end = tl.load(first_row + tl.minimum(sequence + 1, sequences)).to(tl.int32)
    end = tl.where(sequence < sequences, end, rows)
    if begin < end:
        lane = tl.arange(0, TILE_ROWS)
        row = (begin + lane // GROUP).to(tl.int64)
        head = kv_head * GROUP + lane % GROUP
        dim = tl.arange(0, DIM_PADDED)
        own = (lane < TILE_QUERIES * GROUP) & (row < end)
        here = own[:, None] & (dim < DIM)[None, :]
        position = tl.load(positions + row, mask=own, other=-1).to(tl.int32)
        position = tl.where(sequence < sequences, position, -1)
        last = tl.max(position, 0)
        seen_from = 0
        if WINDOW > 0:
            seen_from = tl.maximum(tl.min(tl.where(position < 0, last, position), 0) - WINDOW + 1, 0)
        query = tl.load(
            queries + row[:, None] * query_stride + head[:, None] * head_stride + dim[None, :], mask=here, other=0.0
        ).to(PRODUCT)
        blocks = table + sequence.to(tl.int64) * table_stride
        if IN_PARTS:
            split = tl.program_id(2)
            if (split * SPLIT <= last) & ((split + 1) * SPLIT > seen_from):
                maximum, weight, total = attend_split(
                    query, pages, blocks, position, split, last, seen_from, scale, softcap, kv_head,
                    KV_HEADS, TILE_ROWS, DIM, DIM_PADDED, BLOCK, SPLIT, TILE, WINDOW, CAPPED, PRODUCT,
                )  # fmt: skip
                part = (row * KV_HEADS * GROUP + head) * splits + split
                tl.store(sums + part[:, None] * DIM + dim[None, :], total, mask=here)
                tl.store(norms + part * 2, maximum, mask=own)
                tl.store(norms + part * 2 + 1, weight, mask=own)
        else:
            maximum = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
            weight = tl.full((TILE_ROWS,), 0.0, tl.float32)
            total = tl.full((TILE_ROWS, DIM_PADDED), 0.0, tl.float32)
            for split in range(seen_from // SPLIT, tl.cdiv(last + 1, SPLIT)):
                part_maximum, part_weight, part_total = attend_split(
                    query, pages, blocks, position, split, last, seen_from, scale, softcap, kv_head,
                    KV_HEADS, TILE_ROWS, DIM, DIM_PADDED, BLOCK, SPLIT, TILE, WINDOW, CAPPED, PRODUCT,
                )  # fmt: skip
                maximum, weight, shrink, share = join(maximum, weight, part_maximum, part_weight)
                total = total * shrink[:, None] + part_total * share[:, None]
            result = total / tl.where(position < 0, 1.0, weight)[:, None]
            place = out + row[:, None] * out_stride + head[:, None] * out_head_stride + dim[None, :]
            tl.store(place, result.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["sequences", "splits"])
def _join_parts(
    sums,
    norms,
    first_row,
    positions,
    out,
    sequences,
    splits,
    out_stride,
    out_head_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One (row, head): its splits joined one after the other. Padding gets zeros."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, DIM_PADDED)
    here = dim < DIM
    position = tl.load(positions + row).to(tl.int32)
    position = tl.where(row < tl.load(first_row + sequences), position, -1)
    seen_from = 0
    if WINDOW > 0:
        seen_from = tl.maximum(position - WINDOW + 1, 0)
    maximum = float("-inf")
    weight = 0.0
    total = tl.full((DIM_PADDED,), 0.0, tl.float32)
    for split in range(seen_from // SPLIT, tl.cdiv(position + 1, SPLIT)):
        part = (row * HEADS + head) * splits + split
        maximum, weight, shrink, share = join(maximum, weight, tl.load(norms + part * 2), tl.load(norms + part * 2 + 1))
        total = total * shrink + tl.load(sums + part * DIM + dim, mask=here, other=0.0) * share
    result = total / tl.where(position < 0, 1.0, weight)
    tl.store(out + row * out_stride + head * out_head_stride + dim, result.to(out.dtype.element_ty), mask=here)
