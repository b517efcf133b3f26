"""Outbound: the sending side of one transfer, from computed pages to the closing End.

Pages are copied into send slabs, so a page is free as soon as its unit is framed, whatever the peer does.
"""

from headrace.core.errors import TransferFailed
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.leg import Flight, Leg
from headrace.transfer.link import ReceiptState
from headrace.transfer.peers import NEVER
from headrace.transfer.plan import Unit
from headrace.transfer.site import Site
from headrace.transfer.slabs import Slab
from headrace.transfer.wire import HEADER_BYTES, End, EndStatus, encode_end, encode_unit, fold

_END_STATUS = {
    TransferStatus.COMPLETE: EndStatus.COMPLETE,
    TransferStatus.CANCELLED: EndStatus.CANCELLED,
    TransferStatus.FAILED: EndStatus.FAILED,
}


class Outbound(Leg):
    """Sends units in order as their blocks are computed, at most a window unsettled, and always one End.

    The sender alone times its peer: a receiver may rightly hear nothing for as long as the prompt takes, while a frame
    that was sent has a slab waiting for it, or soon will.
    """

    side = Side.SENDER

    def __init__(self, site: Site, ticket: Ticket, timeout_s: float) -> None:
        super().__init__(site, ticket, timeout_s, site.send_slabs)
        self._blocks: tuple[int, ...] = ()
        self._next = 0
        self._taken: set[int] = set()
        self._digest = b""
        # Frames were lost with their connection: the peer hears that it is over when none is under way any more.
        self._broke_off = False
        # An End that was lost was said again, over another connection.
        self._said_again = False
        # Until when one that follows taken units is waited for.
        self._again_until = NEVER
        # When the End began to wait; NEVER before, and once it is settled.
        self._end_began = NEVER

    @property
    def due(self) -> float:
        return min(super().due, self._stalls_at) if self.open else super().due

    @property
    def gives_up_at(self) -> float:
        heard_at, patience = self.site.peers.heard_at(self.ticket.address), self.site.options.last_patience
        ends_at = patience.farewell_ends_at(self.closed_at, self._waiting_since, heard_at)
        return min(ends_at, patience.dead_ends_at(self.said_dead_at, heard_at))

    @property
    def messages(self) -> int:
        return self._next + (self.end is not None)

    def advance(self, blocks: tuple[int, ...]) -> None:
        """The first len(blocks) blocks of the ticket are computed and stand in these pages."""
        self._blocks = max(self._blocks, blocks[: self.ticket.block_count], key=len)

    def collect(self) -> None:
        if self.open:
            self._land_taken()
        else:
            self.land_settled()

    def proceed(self) -> None:
        while self.open and self._send_next():
            pass
        if self.open and self._next == len(self.units):
            self._send_end(End(EndStatus.COMPLETE, self._next, self._digest))
            self._note_end()
            if not self.flights:
                self._conclude()
        if self.open and self.site.clock() >= self._stalls_at:
            self._stalled()

    def closed(self, status: TransferStatus) -> None:
        if self._again_until < NEVER:
            if self.end is not None and self.end.pending:
                self._let_go_of_end()
            return
        sent = (*(flight.receipt for flight in self.flights.values()), *([self.end] if self.end is not None else ()))
        self._broke_off = not self._said_again and any(receipt.state is ReceiptState.FAILED for receipt in sent)
        if not self._broke_off:
            self._send_end(End(_END_STATUS[status], self._next, self._digest))

    def drain(self) -> None:
        self.land_settled()
        self._note_end()
        if not self.flights:
            self.slabs.unregister(self.ticket.transfer)
            if self._broke_off and self.draining:
                self._say_that_it_broke_off()
                self._note_end()
            if self.end is None or not self.end.pending:
                self.draining = False

    def land(self, index: int) -> None:
        flight = self.flights[index]
        taken = flight.receipt.state is ReceiptState.DONE
        self._back(self.frame_bytes(flight.unit), taken=taken)
        super().land(index)

    def give_up(self) -> None:
        if self._said_again:
            self._let_go_of_end()
        super().give_up()

    def write_off(self) -> None:
        for flight in self.flights.values():
            self._back(self.frame_bytes(flight.unit), taken=False)
        self._let_go_of_end()
        super().write_off()

    @property
    def _waiting_since(self) -> float:
        """Since when the frame has waited that waits longest."""
        # They began in the order in which they stand here.
        for flight in self.flights.values():
            if flight.receipt.pending:
                return min(flight.began, self._end_began)
        return self._end_began

    @property
    def _stalls_at(self) -> float:
        heard_at = self.site.peers.heard_at(self.ticket.address)
        return min(self._again_until, self.site.options.patience.ends_at(self._waiting_since, heard_at))

    def _stalled(self) -> None:
        patience = self.site.options.patience
        if self.site.clock() >= self._waiting_since + patience.short_s:
            reason, refused = "short", f"took other pages and for {patience.short_s:g} s none of this transfer"
        else:
            reason, refused = "silent", f"took nothing for {patience.silent_s:g} s"
        self.site.metrics.stalls.labels(reason).inc()
        self.fail(
            TransferFailed(f"The decode worker {self.ticket.target} {refused}.", remedy="The request is retried.")
        )

    def _conclude(self) -> None:
        """Every unit was taken. An End that is lost then is all that the peer lacks: it is said again."""
        assert self.end is not None
        if self.end.state is ReceiptState.DONE:
            self.close(TransferStatus.COMPLETE)
        elif self.end.state is ReceiptState.FAILED and self._said_again:
            self._lost(self.end.reason)
        elif self.end.state is ReceiptState.FAILED:
            self._complete_again()

    def _send_next(self) -> bool:
        """Send the next unit if its blocks are computed, the window and the peer's share are open and there is a
        slab."""
        if self._next == len(self.units) or len(self.flights) >= self.site.options.window:
            return False
        unit = self.units[self._next]
        if unit.end_block > len(self._blocks):
            return False
        slab = self._take_slab(unit)
        if slab is None:
            return False
        frame = slab.frame[: self.frame_bytes(unit)]
        try:
            self._fill(unit, frame)
        except BaseException:
            # The link has not seen it.
            self.slabs.give_back(slab)
            raise
        receipt = self.site.link.send(self.ticket.address, self.frame_id(unit.index), frame)
        self.flights[unit.index] = Flight(unit, slab, receipt, self.site.clock())
        self.turn = self._sent(len(frame))
        self._next += 1
        return True

    def _take_slab(self, unit: Unit) -> Slab | None:
        """Only a transfer that has something to send, and may, has a slab kept back for it."""
        if not self.site.peers.may_send(self.ticket.address, self.frame_bytes(unit)):
            self.slabs.unregister(self.ticket.transfer)
            return None
        self.slabs.register(self.ticket.transfer)
        return self.slabs.take(self.ticket.transfer)

    def _fill(self, unit: Unit, frame: memoryview) -> None:
        self.site.pages.read(self._blocks[unit.first_block : unit.end_block], frame[HEADER_BYTES:])
        self._digest = fold(self._digest, encode_unit(self.seal, unit, frame))

    def _land_taken(self) -> None:
        for index, flight in list(self.flights.items()):
            if flight.receipt.state is ReceiptState.DONE:
                self.land(index)
                self._taken.add(index)
                self.count(flight.unit)
        while self.settled_units in self._taken:
            self.settled_units += 1
        for flight in self.flights.values():
            if flight.receipt.state is ReceiptState.FAILED:
                self._lost(flight.receipt.reason)
                return

    def _lost(self, reason: str) -> None:
        self.fail(TransferFailed(f"The decode worker {self.ticket.target} did not take the pages: {reason}."))

    def _send_end(self, end: End) -> None:
        if self.end is None:
            frame = encode_end(self.seal, end)
            self.end = self.site.link.send(self.ticket.address, self.frame_id(), memoryview(frame))
            self._end_began = self.site.clock()
            self._sent(0)

    def _say_that_it_broke_off(self) -> None:
        """What the peer did not take will not come any more.

        An End that was under way went the same way as the units; one that was taken promised them, and is the last.
        """
        if self.end is None or self.end.state is ReceiptState.FAILED:
            self._broke_off, self._said_again, self.end = False, True, None
            self._send_end(End(EndStatus.FAILED, self.settled_units, b""))

    def _complete_again(self) -> None:
        """Once, by another connection: a second time the peer is not there, most likely.

        A peer that lacks it takes it at once. One that had heard the first never does, which says nothing of how fast
        it takes what it has a place for.
        """
        self._said_again, self._again_until = True, self.site.clock() + self.site.options.silent_s
        frame = encode_end(self.seal, End(EndStatus.COMPLETE, self._next, self._digest))
        self.end = self.site.link.send(self.ticket.address, self.frame_id(), memoryview(frame))

    def _let_go_of_end(self) -> None:
        """No slab hangs on it. To ask it back could mean to hang up on a peer that is well."""
        if self._end_began < NEVER:
            self._back(0, taken=False)
            self._end_began = NEVER
        self.end = None

    def _note_end(self) -> None:
        """Stop the clock of an End that is settled."""
        if self._end_began < NEVER and self.end is not None and not self.end.pending:
            taken = self.end.state is ReceiptState.DONE
            self._back(0, taken=taken)
            self._end_began = NEVER

    def _sent(self, nbytes: int) -> int:
        """A frame is under way. Returns the number of the turn."""
        self.site.throughput.sent(self.site.clock())
        return self.site.peers.sent(self.ticket.address, nbytes)

    def _back(self, nbytes: int, *, taken: bool) -> None:
        """A frame is not under way any more."""
        taken_at = self.site.clock() if taken else None
        self.site.throughput.back(nbytes, taken_at)
        self.site.peers.back(self.ticket.address, nbytes, taken_at)
