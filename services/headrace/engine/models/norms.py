"""Root-mean-square norms (Zhang and Sennrich, arXiv 1910.07467) of a decoder."""

from dataclasses import dataclass
from typing import Generic

from headrace.engine.weights.source import V


@dataclass(frozen=True, slots=True)
class RmsNorm(Generic[V]):
    """Over the last dimension, in float32 inside. weight: [dim], or [head, dim] with one row a head.

    To torch a weight in the model's dtype multiplies what was rounded to it, as Llama does; a float32 one, such as
    Gemma's 1 + weight, multiplies before. The native kernels round to no other dtype in between.
    """

    weight: V
    eps: float
