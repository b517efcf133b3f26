"""Root-mean-square norms (Zhang and Sennrich, arXiv 1910.07467), in float32 inside."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Over the last dimension, by `weight` after rounding back to the input's dtype, as Llama does.

    weight: [dim], or [head, dim] with one row a head.
    """

    weight: Tensor
    eps: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.weight * _normalised(hidden, self.eps).to(hidden.dtype)


@dataclass(frozen=True, slots=True)
class OffsetRmsNorm:
    """Over the last dimension, by `factor` before rounding back to the input's dtype, as Gemma does.

    factor: 1 + the checkpoint's weight, float32, shaped as RmsNorm's.
    """

    factor: Tensor
    eps: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return (_normalised(hidden, self.eps) * self.factor).to(hidden.dtype)


Norm = RmsNorm | OffsetRmsNorm


def _normalised(hidden: Tensor, eps: float) -> Tensor:
    wide = hidden.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
