"""Choices of arithmetic that all kernels share, because a sequence's answer must not depend on which one ran."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

# Whether a multiplication and an addition may become one rounding. Which of them do is the compiler's choice, and two
# kernels that must agree to the bit would be at its mercy.
FP_FUSION = False

LOG2_E = 1.4426950408889634
# The smallest side of a matrix product on tensor cores.
LEAST_SIDE = 16
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def product_type(kernel: object, dtype: torch.dtype) -> tl.dtype:
    """What the matrix products of `kernel` take, for tensors of `dtype`; their sums are float32.

    The interpreter keeps bfloat16 as bare bits, which it cannot multiply: there it takes float32.
    """
    if isinstance(kernel, InterpretedFunction) and dtype == torch.bfloat16:
        return tl.float32
    return _TYPES[dtype]


@triton.jit
def tanh(x):
    """Of float32, without an overflow on the way. Its error is 1e-7 of 1, not of the result."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -size, size)


@triton.jit
def sigmoid(x):
    """Of float32, without an overflow on the way."""
    shrunk = tl.exp(-tl.abs(x))
    return tl.where(x < 0, shrunk, 1.0) / (1.0 + shrunk)
