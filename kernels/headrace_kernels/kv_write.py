"""KV write: scatters the keys and values of new tokens into pages. `reference.kv_write` is the specification."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
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


def kv_write(keys: Tensor, values: Tensor, pages: Tensor, slots: Tensor) -> None:
    """See reference.kv_write. keys and values may be slices of a larger tensor. A slot past the last is not checked."""
    _check(keys, values, pages, slots)
    tokens, kv_heads, dim = keys.shape
    if tokens == 0:
        return
    _write_token[(tokens, kv_heads)](
        keys,
        values,
        pages,
        slots,
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        KV_HEADS=kv_heads,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        BLOCK=pages.shape[3],
        enable_fp_fusion=FP_FUSION,
    )


def _check(keys: Tensor, values: Tensor, pages: Tensor, slots: Tensor) -> None:
    require(keys.dim() == 3, f"keys must be [tokens, kv_heads, dim], not {tuple(keys.shape)}.")
    tokens, kv_heads, dim = keys.shape
    require(
        pages.dim() == 5 and (pages.shape[1], pages.shape[2], pages.shape[4]) == (kv_heads, 2, dim),
        f"pages must be [num_blocks, {kv_heads}, 2, block_tokens, {dim}], not {tuple(pages.shape)}.",
    )
    require_shape("values", values, (tokens, kv_heads, dim))
    require_shape("slots", slots, (tokens,))
    require_floats(keys=keys, values=values, pages=pages)
    require_indices("slots", slots)
    require_dense("pages", pages)
    require_dense("slots", slots)
    require_dense_rows("keys", keys)
    require_dense_rows("values", values)
    require_one_device(keys=keys, values=values, pages=pages, slots=slots)


@triton.jit
def _write_token(
    keys,
    values,
    pages,
    slots,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One (token, KV head)."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        dim = tl.arange(0, DIM_PADDED)
        here = dim < DIM
        place = pages + (((slot // BLOCK) * KV_HEADS + kv_head) * 2 * BLOCK + slot % BLOCK) * DIM + dim
        key = tl.load(keys + token * key_stride + kv_head * key_head_stride + dim, mask=here)
        value = tl.load(values + token * value_stride + kv_head * value_head_stride + dim, mask=here)
        tl.store(place, key, mask=here)
        tl.store(place + BLOCK * DIM, value, mask=here)
