"""RMSNorm, alone or with the addition that stands before or after it in a layer.

One program a row and head, so a row's bits depend on that row alone. `reference.rms_norm`, `reference.add_rms_norm` and
`reference.rms_norm_add` are the specification.
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
    require_dense_rows,
    require_floats,
    require_one_device,
    require_shape,
)

_NOTHING, _BEFORE, _AFTER = 0, 1, 2
# A warp takes this many values, up to 16 warps.
_WARP_VALUES, _MOST_WARPS = 256, 16


def rms_norm(hidden: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
    """See reference.rms_norm. hidden: [row, dim] or [row, head, dim], dense in its last dimension, and so out."""
    _launch(hidden, hidden, weight, eps, out, out, addition=_NOTHING)


def add_rms_norm(hidden: Tensor, added: Tensor, weight: Tensor, eps: float, *, total: Tensor, out: Tensor) -> None:
    """See reference.add_rms_norm, whose results go into total and out. total may be hidden itself."""
    _launch(hidden, added, weight, eps, total, out, addition=_BEFORE)


def rms_norm_add(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
    """See reference.rms_norm_add. out may be residual itself."""
    _launch(hidden, residual, weight, eps, out, out, addition=_AFTER)


def _launch(
    hidden: Tensor, other: Tensor, weight: Tensor, eps: float, total: Tensor, out: Tensor, *, addition: int
) -> None:
    _check(hidden, other, weight, total, out)
    rows, dim = hidden.shape[0], hidden.shape[-1]
    heads = hidden.shape[1] if hidden.dim() == 3 else 1
    if rows == 0:
        return
    strides = [stride for tensor in (hidden, other, total, out) for stride in _strides(tensor)]
    padded_dim = triton.next_power_of_2(dim)
    _norm_row[(rows, heads)](
        hidden,
        other,
        weight,
        total,
        out,
        eps,
        *strides,
        weight.stride(0) if weight.dim() == 2 else 0,
        DIM=dim,
        DIM_PADDED=padded_dim,
        ADDITION=addition,
        ROUND_FIRST=weight.dtype == hidden.dtype,
        enable_fp_fusion=FP_FUSION,
        num_warps=min(_MOST_WARPS, max(1, padded_dim // _WARP_VALUES)),
    )


def _strides(rows: Tensor) -> tuple[int, int]:
    """From row to row and from head to head."""
    return rows.stride(0), rows.stride(1) if rows.dim() == 3 else 0


def _check(hidden: Tensor, other: Tensor, weight: Tensor, total: Tensor, out: Tensor) -> None:
    require(hidden.dim() in (2, 3), f"hidden must be [row, dim] or [row, head, dim], not {tuple(hidden.shape)}.")
    require(
        weight.shape in (hidden.shape[-1:], hidden.shape[1:]),
        f"weight must be {tuple(hidden.shape[-1:])} or {tuple(hidden.shape[1:])}, not {tuple(weight.shape)}.",
    )
    require(
        weight.dtype in (hidden.dtype, torch.float32),
        f"weight must be {hidden.dtype} or torch.float32, not {weight.dtype}.",
    )
    tensors = {"hidden": hidden, "out": out, "added or residual": other, "total": total}
    for name, tensor in tensors.items():
        require_shape(name, tensor, tuple(hidden.shape))
        require_dense_rows(name, tensor)
    require_dense_rows("weight", weight)
    require_floats(**tensors)
    require_one_device(weight=weight, **tensors)


@triton.jit
def _norm_row(
    hidden,
    other,
    weight,
    total,
    out,
    eps,
    hidden_stride,
    hidden_head_stride,
    other_stride,
    other_head_stride,
    total_stride,
    total_head_stride,
    out_stride,
    out_head_stride,
    weight_head_stride,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    ADDITION: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
):
    """One (row, head). ADDITION: 0 of nothing, 1 of `other` before the norm, 2 of `other` after it."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, DIM_PADDED)
    here = dim < DIM
    dtype = out.dtype.element_ty
    value = tl.load(hidden + row * hidden_stride + head * hidden_head_stride + dim, mask=here, other=0.0)
    value = value.to(tl.float32)
    if ADDITION != 0:
        beside = tl.load(other + row * other_stride + head * other_head_stride + dim, mask=here, other=0.0)
        beside = beside.to(tl.float32)
    if ADDITION == 1:
        summed = (value + beside).to(dtype)
        tl.store(total + row * total_stride + head * total_head_stride + dim, summed, mask=here)
        value = summed.to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / DIM + eps)
    if ROUND_FIRST:
        normed = normed.to(dtype).to(tl.float32)
    factor = tl.load(weight + head * weight_head_stride + dim, mask=here, other=0.0).to(tl.float32)
    result = (normed * factor).to(dtype)
    if ADDITION == 2:
        result = (beside + result.to(tl.float32)).to(dtype)
    tl.store(out + row * out_stride + head * out_head_stride + dim, result, mask=here)
