"""A decode step whose tensors stand still: the same memory for every step, filled anew before each.

Owns the buffers of a captured step and what padding in them looks like. It knows no graph and no model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.errors import InternalError
from headrace.engine import ops
from headrace.engine.rows import padded_rows
from headrace.engine.runner import Span

# A padding row is token 0, turned by position 0, written nowhere and attending to nothing.
_ID, _POSITION, _NOWHERE, _NOTHING = 0, 0, -1, -1


@dataclass(frozen=True, slots=True)
class StaticStep:
    """See Step; made for `tokens` sequences of one token each, padding among them."""

    tokens: int
    rows: int
    ids: Tensor
    positions: Tensor
    slots: ops.Slots
    launch: ops.Launch

    @property
    def contexts(self) -> list[ops.Context]:
        raise InternalError("A captured step attends in one launch: its contexts are known to the GPU alone.")


class StepBuffers:
    """The memory of all captured steps of up to `sequences` sequences with up to `pages` pages each.

    numbers: [4, row], ids, rotary positions, slots and last positions seen. table: [sequence, page]. Smaller steps are
    the first rows of the same. Both have a twin on the host, pinned where `device` is a GPU, which a step's numbers
    are written to first: one copy takes the numbers over, one the part of the table that contexts reach.
    """

    def __init__(self, sequences: int, pages: int, block_tokens: int, device: torch.device) -> None:
        self._block_tokens = block_tokens
        pinned = device.type == "cuda"
        rows = padded_rows(sequences)
        self._host_numbers = torch.zeros(4, rows, dtype=torch.int32, pin_memory=pinned)
        self._host_table = torch.zeros(sequences, pages, dtype=torch.int32, pin_memory=pinned)
        self.numbers = torch.empty(4, rows, dtype=torch.int32, device=device)
        self.table = torch.zeros(sequences, pages, dtype=torch.int32, device=device)
        self._first_row = torch.arange(sequences + 1, dtype=torch.int32, device=device)
        self.fill([])

    @property
    def pages(self) -> int:
        """The most that a sequence may have."""
        return self.table.shape[1]

    def step(self, sequences: int) -> StaticStep:
        """The first `sequences` rows, as many of which are padding as `fill` is not given spans for."""
        rows = padded_rows(sequences)
        ids, positions, slots, last = (line[:rows] for line in self.numbers)
        launch = ops.Launch(self.table[:sequences], self._first_row[: sequences + 1], last, several=False)
        written = ops.Slots(slots[:sequences], slots.new_empty(0))
        return StaticStep(sequences, rows, ids, positions[:sequences], written, launch)

    def fill(self, spans: list[Span]) -> None:
        """Spans of one token each; all other rows become padding.

        The copies wait for whatever the GPU still does, so that no later step's numbers overtake an earlier step.
        """
        numbers = self._host_numbers.numpy()
        numbers[:] = [[_ID], [_POSITION], [_NOWHERE], [_NOTHING]]
        numbers[:, : len(spans)] = [
            [span.tokens[span.start] for span in spans],
            [span.start for span in spans],
            [self._slot(span) for span in spans],
            [span.start for span in spans],
        ]
        self.numbers.copy_(self._host_numbers)
        if spans:
            reached = max(len(span.blocks) for span in spans)
            table = self._host_table.numpy()
            for row, span in enumerate(spans):
                table[row, : len(span.blocks)] = span.blocks
            self.table[: len(spans), :reached].copy_(self._host_table[: len(spans), :reached])

    def _slot(self, span: Span) -> int:
        return span.blocks[span.start // self._block_tokens] * self._block_tokens + span.start % self._block_tokens
