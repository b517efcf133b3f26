"""Root-mean-square norms (Zhang and Sennrich, arXiv 1910.07467), alone or with the addition beside them in a layer."""

from dataclasses import dataclass

from torch import Tensor

from headrace.engine import ops


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Over the last dimension, in float32 inside. weight: [dim], or [head, dim] with one row a head.

    A weight in the model's dtype multiplies what was rounded to it, as Llama does; a float32 one, such as Gemma's
    1 + weight, multiplies before.
    """

    weight: Tensor
    eps: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return ops.rms_norm(hidden, self.weight, self.eps)

    def of_sum(self, hidden: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """hidden + added, and its norm."""
        return ops.add_rms_norm(hidden, added, self.weight, self.eps)

    def added_to(self, residual: Tensor, hidden: Tensor) -> Tensor:
        """residual + the norm of hidden."""
        return ops.rms_norm_add(hidden, residual, self.weight, self.eps)
