"""The Carrier border: moves one job's KV blocks from a prefill to a decode worker, or says that it did not.

A carrier knows tickets, block ids and bytes. It knows no tokens, jobs' meaning, routers or engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.pages import PagePort
from headrace.core.ticket import Ticket


class Side(Enum):
    SENDER = "sent"
    RECEIVER = "received"


class TransferStatus(Enum):
    """complete: every block verified (receiver) or taken by the peer (sender)."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TransferReport:
    """The one closing word on a transfer, and the fence: once it is made, no byte of the transfer is read from
    or written to a page any more, whatever the peer does.

    verified_blocks: receiver: how many blocks from the ticket's first on, without a gap, hold verified data.
    sender: how many were taken. error is set if and only if status is FAILED.
    messages: frames sent to or heard from the peer: one a unit, and the End.
    """

    transfer: bytes
    side: Side
    status: TransferStatus
    verified_blocks: int
    payload_bytes: int
    seconds: float
    error: HeadraceError | None = None
    messages: int = 0


@dataclass(frozen=True, slots=True)
class CarrierHealth:
    """How much a carrier can take on, at one moment.

    free_slabs: of the side, sending or receiving, that has fewer: so many more transfers can begin at once.
    quarantined_slabs: of both sides. rebuilds: how often the link was replaced since the carrier started.
    bytes_s: what peers took a second lately, while anything was under way to them; 0: not measured.
    """

    free_slabs: int
    quarantined_slabs: int
    rebuilds: int
    bytes_s: float = 0.0


Told = Callable[[str, float], None]
"""Told of a meeting, on the transfer thread: why the peer did not answer, "" if it did, and the seconds it took."""


class Carrier(Protocol):
    """All methods may be called from any thread, return at once and never raise for what a peer does.

    Every `receive` and `send` leads to exactly one TransferReport, given to the `report` callback that the carrier
    was made with, on the transfer thread. Both are bounded by `timeout_s`, and a send by its peer's silence too. An id
    names one transfer: a second `receive` or `send` of one that is open is ignored. So are unknown transfers.
    """

    @property
    def address(self) -> str:
        """This worker's data address, for leases and tickets. It changes when a link that broke was replaced: tickets
        with the former one fail."""
        ...

    @property
    def health(self) -> CarrierHealth:
        """What it is now."""
        ...

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        """Expect a ticket's blocks; blocks[i] is where the ticket's i-th wire block goes, in pages held by the caller.

        Wire blocks are numbered in pages as `neutral.wire_blocks` does; of equal page sizes that is the page's id."""
        ...

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        """Open the sending side. Nothing leaves until `advance`."""
        ...

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        """The ticket's first len(blocks) wire blocks are computed and stand in these; send what is new."""
        ...

    def cancel(self, transfer: bytes, *, lost: bool = False) -> None:
        """Give a transfer up; its report (CANCELLED, unless it was already closing) follows promptly.

        lost: its peer is said to be dead. What is under way of it, also when its report was made before, is not waited
        for any longer, and all that is under way to the peer fails, unless that took something a moment ago.
        """
        ...

    def meet(self, address: str, told: Told) -> None:
        """Call the peer whose data address this is, so that a later `send` finds the way there open. `told` once; not
        at all if the carrier closes first. It must return at once."""
        ...


class OwnedCarrier(Carrier, Protocol):
    """A carrier with its thread: `start` returns once `address` is known, `close` once the thread has ended."""

    def start(self) -> None: ...

    def close(self, timeout_s: float, /) -> None: ...


MakeCarrier = Callable[[PagePort, Callable[[TransferReport], None]], OwnedCarrier]
