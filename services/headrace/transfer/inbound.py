"""Inbound: the receiving side of one transfer, from posted slabs to verified pages.

Only a frame that verified is copied into pages, in unit order, so what is verified has no gap.
"""

from headrace.core.errors import TransferFailed
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.leg import Flight, Leg
from headrace.transfer.link import ReceiptState
from headrace.transfer.site import Site
from headrace.transfer.slabs import SlabState
from headrace.transfer.wire import (
    END_FRAME_BYTES,
    HEADER_BYTES,
    End,
    EndStatus,
    Refusal,
    fold,
    verify_end,
    verify_unit,
)

_NO_HEADER = bytes(HEADER_BYTES)


class Inbound(Leg):
    """Posts a window ahead in unit order, and the End from the start.

    Until its first unit arrives a transfer posts one slab only: a sender may be far from its turn, and slabs that
    wait for it are missing to those whose pages are here.
    """

    side = Side.RECEIVER

    def __init__(self, site: Site, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        super().__init__(site, ticket, timeout_s, site.receive_slabs)
        self._blocks = blocks
        self._next_post = 0
        self._digest = b""
        self._received: set[int] = set()
        self._end_frame = memoryview(bytearray(END_FRAME_BYTES))
        self.end = site.link.post(self.frame_id(), self._end_frame)
        self._end_heard = False
        self._last_word: End | None = None
        self.slabs.register(ticket.transfer)

    @property
    def gives_up_at(self) -> float:
        return self.closed_at + self.site.options.linger_s

    @property
    def messages(self) -> int:
        return len(self._received) + self._end_heard

    def proceed(self) -> None:
        while self.open and self._take_next():
            pass
        self._hear_end()
        self._mark_arrived()
        if self.open:
            self._post_ahead()
            self._conclude()

    def closed(self, status: TransferStatus) -> None:
        for flight in self.flights.values():
            self.ask_back(flight.receipt)
        if status is TransferStatus.FAILED:
            self.quarantine_pending()

    def drain(self) -> None:
        """The sender's End says what it had sent: that much is received and thrown away, so that its sends settle."""
        self._hear_end()
        self._land_discarded()
        if self.draining and self._last_word is not None:
            self._post_discards(self._last_word.units_sent)
        ended = self.end is not None and not self.end.pending
        if self.draining and ended and not self.flights:
            self.draining = False
        if not self.flights and (self._last_word is None or not self.draining):
            self.slabs.unregister(self.ticket.transfer)

    def _hear_end(self) -> None:
        if self._end_heard or self.end is None or self.end.pending:
            return
        self._end_heard = True
        if self.end.state is ReceiptState.FAILED:
            self.fail(TransferFailed(f"The prefill worker {self.ticket.source} was lost: {self.end.reason}."))
            return
        verdict = verify_end(self.seal, self._end_frame)
        if isinstance(verdict, Refusal):
            self._refuse(verdict)
            return
        self._last_word = verdict
        if verdict.status is not EndStatus.COMPLETE:
            word = "gave the transfer up" if verdict.status is EndStatus.CANCELLED else "failed"
            self.fail(
                TransferFailed(f"The prefill worker {self.ticket.source} {word} after {verdict.units_sent} units.")
            )
        elif verdict.units_sent != len(self.units):
            self._refuse(Refusal.UNIT)

    def _take_next(self) -> bool:
        """Verify the next unit and copy it into its pages, if it is here."""
        flight = self.flights.get(self.settled_units)
        if flight is None or flight.receipt.pending:
            return False
        if flight.receipt.state is ReceiptState.FAILED:
            self._lost(flight)
            return False
        unit = flight.unit
        frame = flight.slab.frame[: self.frame_bytes(unit)]
        self.slabs.arrive(flight.slab)
        verdict = verify_unit(self.seal, unit, frame)
        if isinstance(verdict, Refusal):
            self._refuse(verdict)
            return False
        self.site.pages.write(self._blocks[unit.first_block : unit.end_block], frame[HEADER_BYTES:])
        self._digest = fold(self._digest, verdict)
        self._received.add(unit.index)
        self.land(unit.index)
        self.settled_units += 1
        self.count(unit)
        return True

    def _mark_arrived(self) -> None:
        """Units that overtook the next one wait in their slabs; a failed one fails the transfer at once."""
        for flight in self.flights.values():
            if flight.receipt.state is ReceiptState.FAILED:
                self._lost(flight)
                return
            if flight.receipt.state is ReceiptState.DONE and flight.slab.state is SlabState.POSTED:
                self.slabs.arrive(flight.slab)

    def _post_ahead(self) -> None:
        window = self.site.options.window if self.settled_units else 1
        while self._next_post < min(len(self.units), self.settled_units + window) and self._post(self._next_post):
            self._next_post += 1

    def _post(self, index: int) -> bool:
        self.slabs.register(self.ticket.transfer)
        slab = self.slabs.take(self.ticket.transfer)
        if slab is None:
            return False
        unit = self.units[index]
        frame = slab.frame[: self.frame_bytes(unit)]
        # A frame shorter than its unit must not be read together with the header of an earlier one.
        frame[:HEADER_BYTES] = _NO_HEADER
        receipt = self.site.link.post(self.frame_id(index), frame)
        self.flights[index] = Flight(unit, slab, receipt, self.site.clock())
        return True

    def _conclude(self) -> None:
        if self._last_word is None or self.settled_units < len(self.units):
            return
        if self._last_word.digest != self._digest:
            self._refuse(Refusal.DIGEST)
        else:
            self.close(TransferStatus.COMPLETE)

    def _land_discarded(self) -> None:
        for index, flight in self.flights.items():
            if flight.receipt.state is ReceiptState.DONE:
                self._received.add(index)
        self.land_settled()

    def _post_discards(self, units_sent: int) -> None:
        for index in range(self.settled_units, min(units_sent, len(self.units))):
            if len(self.flights) >= self.site.options.window:
                return
            if index not in self._received and index not in self.flights and not self._post(index):
                return

    def _lost(self, flight: Flight) -> None:
        reason = flight.receipt.reason
        self.fail(TransferFailed(f"The prefill worker {self.ticket.source} was lost inside a unit: {reason}."))

    def _refuse(self, refusal: Refusal) -> None:
        self.site.count_refused(refusal)
        self.fail(
            TransferFailed(f"What the prefill worker {self.ticket.source} sent did not verify ({refusal.value}).")
        )
