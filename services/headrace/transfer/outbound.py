"""Outbound: the sending side of one transfer, from computed pages to the closing End.

Pages are copied into send slabs, so a page is free as soon as its unit is framed, whatever the peer does.
"""

from headrace.core.errors import TransferFailed
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.leg import Flight, Leg
from headrace.transfer.link import ReceiptState
from headrace.transfer.plan import Unit
from headrace.transfer.site import Site
from headrace.transfer.wire import HEADER_BYTES, End, EndStatus, encode_end, encode_unit, fold

_END_STATUS = {
    TransferStatus.COMPLETE: EndStatus.COMPLETE,
    TransferStatus.CANCELLED: EndStatus.CANCELLED,
    TransferStatus.FAILED: EndStatus.FAILED,
}


class Outbound(Leg):
    """Sends units in order as their blocks are computed, at most a window unsettled, and always one End."""

    side = Side.SENDER

    def __init__(self, site: Site, ticket: Ticket, timeout_s: float) -> None:
        super().__init__(site, ticket, timeout_s, site.send_slabs)
        self.drain_limit_s = site.options.drain_s
        self._blocks: tuple[int, ...] = ()
        self._next = 0
        self._taken: set[int] = set()
        self._digest = b""

    def advance(self, blocks: tuple[int, ...]) -> None:
        """The first len(blocks) blocks of the ticket are computed and stand in these pages."""
        self._blocks = max(self._blocks, blocks[: self.ticket.block_count], key=len)

    def proceed(self) -> None:
        self._land_taken()
        while self.open and self._send_next():
            pass
        if self.open and self._next == len(self.units):
            self._send_end(TransferStatus.COMPLETE)
            if self.end is not None and not self.flights and self.end.state is ReceiptState.DONE:
                self.close(TransferStatus.COMPLETE)
            elif self.end is not None and self.end.state is ReceiptState.FAILED:
                self._lost(self.end.reason)

    def closed(self, status: TransferStatus) -> None:
        lost = any(flight.receipt.state is ReceiptState.FAILED for flight in self.flights.values())
        if not lost:
            self._send_end(status)

    def drain(self) -> None:
        self.land_settled()
        if not self.flights:
            self.slabs.unregister(self.ticket.transfer)
            if self.end is None or not self.end.pending:
                self.draining = False

    def _send_next(self) -> bool:
        """Send the next unit if its blocks are computed, the window is open and there is a slab."""
        if self._next == len(self.units) or len(self.flights) >= self.site.options.window:
            return False
        unit = self.units[self._next]
        if unit.end_block > len(self._blocks):
            return False
        # Only a transfer that has something to send may have a slab kept back for it.
        self.slabs.register(self.ticket.transfer)
        slab = self.slabs.take(self.ticket.transfer)
        if slab is None:
            return False
        frame = slab.frame[: self.site.frame_bytes(unit.block_count)]
        self._fill(unit, frame)
        receipt = self.site.link.send(self.ticket.address, self.frame_id(unit.index), frame)
        self.flights[unit.index] = Flight(unit, slab, receipt)
        self._next += 1
        return True

    def _fill(self, unit: Unit, frame: memoryview) -> None:
        self.site.pages.read(self._blocks[unit.first_block : unit.end_block], frame[HEADER_BYTES:])
        self._digest = fold(self._digest, encode_unit(self.ticket, unit, frame))

    def _land_taken(self) -> None:
        for index, flight in list(self.flights.items()):
            if flight.receipt.state is ReceiptState.FAILED:
                self._lost(flight.receipt.reason)
                return
            if flight.receipt.state is ReceiptState.DONE:
                self.land(index)
                self._taken.add(index)
                self.site.count_unit(self.side, flight.unit.block_count)
        while self.settled_units in self._taken:
            self.settled_units += 1

    def _lost(self, reason: str) -> None:
        self.fail(TransferFailed(f"The decode worker {self.ticket.target} did not take the pages: {reason}."))

    def _send_end(self, status: TransferStatus) -> None:
        if self.end is None:
            frame = encode_end(self.ticket, End(_END_STATUS[status], self._next, self._digest))
            self.end = self.site.link.send(self.ticket.address, self.frame_id(), memoryview(frame))
