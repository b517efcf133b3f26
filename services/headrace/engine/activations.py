"""Element-wise functions of a decoder, in torch: a row's bits are the same whichever rows stand beside it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

# Elements that torch computes on one thread, whatever the function; and those it gives each thread at least.
_ONE_THREAD, _GRAIN = 16_384, 32_768


def by_rows(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An element-wise `function` for one half of [row, 2 x n], of padded rows.

    torch computes the elements that do not fill vector registers with other instructions, which round differently.
    Which these are depends on where threads divide the tensor: with this always between two rows.
    """

    def call(rows: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        if threads <= 2 or rows.numel() <= _ONE_THREAD:
            return function(rows)
        shared = len(rows) - len(rows) % threads
        if shared * rows.shape[1] < threads * _GRAIN:
            shared = 0
        alone = _on_one_thread(function, rows[shared:])
        return torch.cat((function(rows[:shared]), *alone)) if shared else torch.cat(alone)

    return call


def _on_one_thread(function: Callable[[Tensor], Tensor], rows: Tensor) -> list[Tensor]:
    """Results for as many rows at once as one thread takes, a row that is too long in parts."""
    width = rows.shape[1]
    if width <= _ONE_THREAD:
        few = _ONE_THREAD // width
        return [function(rows[start : start + few]) for start in range(0, len(rows), few)]
    return [
        torch.cat([function(row[start : start + _ONE_THREAD]) for start in range(0, width, _ONE_THREAD)])[None]
        for row in rows
    ]


# By their names in ModelConfig.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": by_rows(functional.silu),
    "gelu_tanh": by_rows(partial(functional.gelu, approximate="tanh")),
}


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """cap x tanh(values / cap)."""
    return (values / cap).tanh() * cap
