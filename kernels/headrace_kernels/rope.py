"""Rotary embedding: turns the halves of the first part of each head and copies the rest.

`reference.rope` is the specification.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
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

_HEADS_AT_ONCE = 8


def rope(states: Tensor, cosines: Tensor, sines: Tensor, *, out: Tensor) -> None:
    """See reference.rope. states and out may be slices of larger tensors, and one and the same."""
    _check(states, cosines, sines, out)
    tokens, heads, dim = states.shape
    if tokens == 0:
        return
    half = cosines.shape[1] // 2
    at_once = min(_HEADS_AT_ONCE, triton.next_power_of_2(heads))
    _turn_heads[(tokens, triton.cdiv(heads, at_once))](
        states,
        cosines,
        sines,
        out,
        states.stride(0),
        states.stride(1),
        cosines.stride(0),
        sines.stride(0),
        out.stride(0),
        out.stride(1),
        HEADS=heads,
        AT_ONCE=at_once,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        STILL=dim - 2 * half,
        STILL_PADDED=triton.next_power_of_2(max(1, dim - 2 * half)),
        enable_fp_fusion=FP_FUSION,
    )


def _check(states: Tensor, cosines: Tensor, sines: Tensor, out: Tensor) -> None:
    require(states.dim() == 3, f"states must be [token, head, dim], not {tuple(states.shape)}.")
    tokens, _, dim = states.shape
    require(
        cosines.dim() == 2 and len(cosines) == tokens and 2 <= cosines.shape[1] <= dim and cosines.shape[1] % 2 == 0,
        f"cosines must be [{tokens}, an even number up to {dim}], not {tuple(cosines.shape)}.",
    )
    require_shape("sines", sines, tuple(cosines.shape))
    require_shape("out", out, tuple(states.shape))
    require_floats(states=states, cosines=cosines, sines=sines, out=out)
    for name, rows in (("states", states), ("cosines", cosines), ("sines", sines), ("out", out)):
        require_dense_rows(name, rows)
    require_one_device(states=states, cosines=cosines, sines=sines, out=out)


@triton.jit
def _turn_heads(
    states,
    cosines,
    sines,
    out,
    state_stride,
    state_head_stride,
    cosine_stride,
    sine_stride,
    out_stride,
    out_head_stride,
    HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    STILL: tl.constexpr,
    STILL_PADDED: tl.constexpr,
):
    """AT_ONCE heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    source = states + token * state_stride + head[:, None] * state_head_stride
    target = out + token * out_stride + head[:, None] * out_head_stride
    dim = tl.arange(0, HALF_PADDED)
    here = (head < HEADS)[:, None] & (dim < HALF)[None, :]
    first = tl.load(source + dim[None, :], mask=here).to(tl.float32)
    second = tl.load(source + HALF + dim[None, :], mask=here).to(tl.float32)
    cosine = cosines + token * cosine_stride + dim
    sine = sines + token * sine_stride + dim
    turned = first * _angle(cosine, dim < HALF) - second * _angle(sine, dim < HALF)
    tl.store(target + dim[None, :], turned.to(out.dtype.element_ty), mask=here)
    turned = second * _angle(cosine + HALF, dim < HALF) + first * _angle(sine + HALF, dim < HALF)
    tl.store(target + HALF + dim[None, :], turned.to(out.dtype.element_ty), mask=here)
    if STILL > 0:
        rest = tl.arange(0, STILL_PADDED)
        here = (head < HEADS)[:, None] & (rest < STILL)[None, :]
        kept = tl.load(source + 2 * HALF + rest[None, :], mask=here)
        tl.store(target + 2 * HALF + rest[None, :], kept, mask=here)


@triton.jit
def _angle(place, here):
    """Values of a table as one row of float32."""
    return tl.load(place, mask=here).to(tl.float32)[None, :]
