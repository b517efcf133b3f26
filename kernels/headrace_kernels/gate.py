"""The gate of a feed-forward: act(gate) x up of the two halves of a row. `reference.gate` is the specification."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from headrace_kernels.numerics import FP_FUSION, sigmoid
from headrace_kernels.requires import require, require_dense_rows, require_floats, require_one_device, require_shape

_AT_ONCE = 1024
_ACTIVATIONS = ("silu", "gelu_tanh")


def gate(gate_up: Tensor, activation: str, *, out: Tensor) -> None:
    """See reference.gate. gate_up: [row, 2 x inner]; out: [row, inner]; both dense in their last dimension."""
    _check(gate_up, activation, out)
    rows, inner = out.shape
    if rows == 0:
        return
    _gate_values[(rows, triton.cdiv(inner, _AT_ONCE))](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        INNER=inner,
        AT_ONCE=_AT_ONCE,
        SILU=activation == "silu",
        enable_fp_fusion=FP_FUSION,
    )


def _check(gate_up: Tensor, activation: str, out: Tensor) -> None:
    require(activation in _ACTIVATIONS, f"activation must be one of {', '.join(_ACTIVATIONS)}, not {activation}.")
    require(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0,
        f"gate_up must be [row, 2 x inner], not {tuple(gate_up.shape)}.",
    )
    require_shape("out", out, (gate_up.shape[0], gate_up.shape[1] // 2))
    require_floats(gate_up=gate_up, out=out)
    require_dense_rows("gate_up", gate_up)
    require_dense_rows("out", out)
    require_one_device(gate_up=gate_up, out=out)


@triton.jit
def _gate_values(
    gate_up, out, gate_up_stride, out_stride, INNER: tl.constexpr, AT_ONCE: tl.constexpr, SILU: tl.constexpr
):
    """AT_ONCE values of one row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    here = place < INNER
    x = tl.load(gate_up + row * gate_up_stride + place, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_stride + INNER + place, mask=here, other=0.0).to(tl.float32)
    # (1 + tanh(y)) / 2 is sigmoid(2y), and keeps its precision where tanh nears -1.
    turned = x if SILU else 1.5957691216057308 * (x + 0.044715 * x * x * x)
    tl.store(out + row * out_stride + place, (x * sigmoid(turned) * up).to(out.dtype.element_ty), mask=here)
