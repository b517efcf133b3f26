"""What the sending side of a hand-off does when it is told: open a link, send frames, blocks, or a prompt's pages.

Owns the pages, the engine if one is loaded, and the open end. Used in a process of its own, or beside the receiver.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.bench.handoff_end import LIMIT_S, Addresses, Cut, HandoffEnd, Wiring
from headrace.bench.handoff_prompt import Prefilled, PromptReader
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.engine.options import EngineOptions
from headrace.engine.page_memory import PageMemory
from headrace.transfer.loopback import Switchboard


class Sender:
    """One end at a time. switchboard: for loopback, the receiver's."""

    def __init__(self, switchboard: Switchboard | None = None) -> None:
        self._switchboard = switchboard
        self._end: HandoffEnd | None = None
        self._reader: PromptReader | None = None

    def load(self, model: str, cache_dir: Path, options: EngineOptions) -> tuple[str, KvLayout]:
        """Load a model's engine; takes seconds. Returns the model's name and the shape of its pages."""
        self._reader = PromptReader(model, cache_dir, options)
        return self._reader.name, self._reader.pages.layout

    def open(self, wiring: Wiring, cut: Cut, blocks: int) -> Addresses:
        """An end over pages full of noise."""
        return self._open(
            HandoffEnd(wiring, wiring.sender, noise(cut.layout, blocks), cut.unit_blocks, self._switchboard)
        )

    def open_engine(self, wiring: Wiring, unit_blocks: int) -> Addresses:
        """An end over the engine's own pages."""
        assert self._reader is not None, "no engine is loaded"
        return self._open(HandoffEnd(wiring, wiring.sender, self._reader.pages, unit_blocks, self._switchboard))

    def bare(self, address: str, transfer: bytes, sizes: Sequence[int]) -> None:
        self._opened.bare.send(address, transfer, sizes, LIMIT_S)

    def send(self, ticket: Ticket, blocks: Sequence[int]) -> None:
        self._opened.send(ticket, blocks)

    def prefill(self, ticket: Ticket, tokens: int, streamed: bool) -> Prefilled:
        """Read a prompt of so many tokens and hand its pages over: as they are computed, or once they all are."""
        assert self._reader is not None, "no engine is loaded"
        return self._reader.hand_over(self._opened, ticket, tokens, streamed=streamed)

    def shut(self) -> None:
        """Close the end."""
        if self._end is not None:
            end, self._end = self._end, None
            end.close()

    def close(self) -> None:
        self.shut()

    @property
    def _opened(self) -> HandoffEnd:
        assert self._end is not None, "no end is open"
        return self._end

    def _open(self, end: HandoffEnd) -> Addresses:
        self._end = end
        return end.addresses


def noise(layout: KvLayout, blocks: int) -> PageMemory:
    """Pages that somebody wrote: reading those that nobody did costs nothing."""
    pages = PageMemory(layout, blocks)
    random = np.random.default_rng(1)
    for layer in pages.bytes:
        layer[:] = random.integers(0, 256, layer.shape, dtype=np.uint8)
    return pages
