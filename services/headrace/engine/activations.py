"""Element-wise functions of a decoder, in torch."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from headrace.engine.rows import by_rows

# By their names in ModelConfig.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": by_rows(functional.silu),
    "gelu_tanh": by_rows(partial(functional.gelu, approximate="tanh")),
}


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """cap x tanh(values / cap)."""
    return (values / cap).tanh() * cap
