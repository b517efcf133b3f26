"""Leg: what the two sides of a transfer have in common: a deadline, one report, slabs that go home when settled.

Owns the closing word and the slabs under way. It knows no threads; the transfer thread drives `step`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import structlog

from headrace.core.errors import HeadraceError, TransferFailed
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferReport, TransferStatus
from headrace.transfer.link import END_UNIT, FrameId, Receipt
from headrace.transfer.peers import NEVER
from headrace.transfer.plan import Unit, units
from headrace.transfer.site import Site
from headrace.transfer.slabs import Slab, SlabPool, SlabState
from headrace.transfer.wire import HEADER_BYTES, Seal

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Flight:
    """A unit's frame in the hands of the link since `began`, on the site's clock."""

    unit: Unit
    slab: Slab
    receipt: Receipt
    began: float


class Leg(ABC):
    """One side of one transfer.

    It is *open* until it reports. Afterwards it *drains*: no page is touched any more, and it lives only until the link
    has let go of everything. `over` then says so, and every slab is back.

    turn: when it last sent a frame, in turns of the site; 0 before.
    """

    side: Side

    def __init__(self, site: Site, ticket: Ticket, timeout_s: float, slabs: SlabPool) -> None:
        self.site = site
        self.ticket = ticket
        self.units = units(ticket)
        self.slabs = slabs
        self.flights: dict[int, Flight] = {}
        self.end: Receipt | None = None
        self.began = site.clock()
        self.limit = self.began + timeout_s
        self.closed_at = self.limit
        self.said_dead_at = NEVER
        self.open = True
        self.draining = True
        self.settled_units = 0
        self.turn = 0
        # Looked up once: a unit is counted while bytes wait.
        self._counted_bytes = site.metrics.bytes.labels(self.side.value)
        self._counted_units = site.metrics.units.labels(self.side.value)
        self._block_bytes = ticket.wire.block_bytes
        self.seal = Seal.of(ticket)

    @property
    def over(self) -> bool:
        ended = self.end is None or not self.end.pending
        return not self.open and not self.flights and ended and not self.draining

    @property
    def due(self) -> float:
        """Until when nothing happens by itself, on the site's clock."""
        if self.open:
            return self.limit
        return self.gives_up_at if self.draining else float("inf")

    def collect(self) -> None:
        """Take back what settled, before any leg asks for more of what all share. Only senders share by peer."""
        return

    def step(self) -> None:
        """Do all that can be done now."""
        now = self.site.clock()
        if self.open and now >= self.limit:
            self.fail(TransferFailed("The transfer did not complete in its time.", remedy="The request is retried."))
        if self.open:
            self.proceed()
        if not self.open:
            if self.draining and now >= self.gives_up_at:
                self.give_up()
            self.drain()

    def cancel(self) -> None:
        """Give the transfer up, if it has not been reported."""
        if self.open:
            self.close(TransferStatus.CANCELLED)

    def lose_peer(self) -> None:
        """Somebody says that the peer is dead. Give the transfer up, and do not wait long for what is under way."""
        self.said_dead_at = min(self.said_dead_at, self.site.clock())
        self.cancel()

    def fail(self, error: HeadraceError) -> None:
        if self.open:
            self.close(TransferStatus.FAILED, error)

    def abandon(self, error: HeadraceError) -> None:
        """Fail without a word to the peer: there is no link any more. The slabs stay with it."""
        if self.open:
            self.open = False
            self._report(TransferStatus.FAILED, error)

    def close(self, status: TransferStatus, error: HeadraceError | None = None) -> None:
        """Report, once and for all, whatever else goes wrong. From here on no page is read or written."""
        self.open = False
        self.closed_at = self.site.clock()
        try:
            self.closed(status)
        finally:
            self._report(status, error)

    def give_up(self) -> None:
        """Stop waiting for the peer: ask the link for everything back, and quarantine what it cannot return yet."""
        self.draining = False
        for flight in self.flights.values():
            self.ask_back(flight.receipt)
        self.quarantine_pending()
        in_doubt = sum(flight.receipt.pending for flight in self.flights.values())
        if in_doubt:
            _log.warning("slabs.in_doubt", transfer=self.ticket.transfer.hex(), side=self.side.value, slabs=in_doubt)
        if self.end is not None:
            self.ask_back(self.end)

    def ask_back(self, receipt: Receipt) -> None:
        """Withdraw what is under way. A link that fails at that keeps the slab, which then stays in quarantine."""
        try:
            receipt.withdraw()
        except Exception:
            _log.exception("transfer.withdraw_failed", transfer=self.ticket.transfer.hex(), side=self.side.value)

    def quarantine_pending(self) -> None:
        """What was asked back and is not here: its peer may use it yet."""
        for flight in self.flights.values():
            if flight.receipt.pending:
                self._quarantine(flight.slab)

    def write_off(self) -> None:
        """The leg is defect. What it holds may be with the link or not: nobody gets it until the link is replaced."""
        for flight in self.flights.values():
            self._quarantine(flight.slab)
        self.slabs.unregister(self.ticket.transfer)
        self.flights, self.end, self.draining = {}, None, False

    def land(self, index: int) -> None:
        """A unit's receipt is settled and its slab not needed any more."""
        self.slabs.give_back(self.flights.pop(index).slab)

    def land_settled(self) -> None:
        for index in [index for index, flight in self.flights.items() if not flight.receipt.pending]:
            self.land(index)

    def count(self, unit: Unit) -> None:
        """A unit is where it should be."""
        self._counted_bytes.inc(unit.block_count * self._block_bytes)
        self._counted_units.inc()

    def frame_bytes(self, unit: Unit) -> int:
        """Of a unit: header and payload."""
        return HEADER_BYTES + unit.block_count * self._block_bytes

    def frame_id(self, index: int = END_UNIT) -> FrameId:
        return FrameId(self.ticket.transfer, index)

    def _quarantine(self, slab: Slab) -> None:
        if slab.state is not SlabState.QUARANTINED:
            self.slabs.quarantine(slab)
            self.site.metrics.quarantined.inc()

    def _report(self, status: TransferStatus, error: HeadraceError | None) -> None:
        blocks = sum(unit.block_count for unit in self.units[: self.settled_units])
        self.site.close_books(
            TransferReport(
                transfer=self.ticket.transfer,
                side=self.side,
                status=status,
                verified_blocks=blocks,
                payload_bytes=blocks * self.ticket.wire.block_bytes,
                seconds=self.site.clock() - self.began,
                error=error,
                messages=self.messages,
            )
        )

    @property
    @abstractmethod
    def gives_up_at(self) -> float:
        """When a closed transfer stops waiting for its peer, on the site's clock."""

    @property
    @abstractmethod
    def messages(self) -> int:
        """Frames sent to the peer, or heard from it, until now."""

    @abstractmethod
    def proceed(self) -> None:
        """Move an open transfer on."""

    @abstractmethod
    def closed(self, status: TransferStatus) -> None:
        """The transfer was just closed, for better or worse: begin to let go."""

    @abstractmethod
    def drain(self) -> None:
        """Move a closed transfer towards its end; set `draining` to False when the peer needs nothing more."""
