"""Inbound: the receiving side of one transfer, from posted slabs to verified pages.

Only a frame that verified is copied into pages, in unit order, so what is verified has no gap.
"""

from headrace.core.errors import TransferFailed
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.leg import Flight, Leg
from headrace.transfer.link import ReceiptState
from headrace.transfer.peers import FAREWELL_S, NEVER
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

    A sender may rightly be silent for as long as the prompt takes. What it has sent, as what came behind that shows,
    must be here soon: units are sent in order, and the End right behind the last one. How soon follows from how long
    the sender waits for it to be taken, which is longer while other frames get through.
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
        self._heard_at = self.began
        self._source = site.sources.of(ticket.source)
        self.slabs.register(ticket.transfer)

    @property
    def due(self) -> float:
        return min(super().due, self._overdue_at) if self.open else super().due

    @property
    def gives_up_at(self) -> float:
        options = self.site.options
        dead_at = max(self.said_dead_at, self.closed_at + min(FAREWELL_S, options.silent_s))
        return min(self.closed_at + options.linger_s, dead_at, self._discards_end_at)

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
        if self.open and self.site.clock() >= self._overdue_at:
            self._overdue()

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
            self._heard_at = self.site.clock()
            self.fail(TransferFailed(f"The prefill worker {self.ticket.source} was lost: {self.end.reason}."))
            return
        self._heard()
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
        self._arrive(flight)
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
            if flight.receipt.state is ReceiptState.DONE:
                self._arrive(flight)

    def _arrive(self, flight: Flight) -> None:
        if flight.slab.state is SlabState.POSTED:
            self.slabs.arrive(flight.slab)
            self._heard()

    def _heard(self) -> None:
        self._heard_at = self._source.heard_at = self.site.clock()

    @property
    def _missing_since(self) -> float:
        """Since when something is missing that the sender has certainly sent, for what it sends behind that is here.
        NEVER if there is nothing of the kind, or no slab is posted for it."""
        if self.settled_units == len(self.units):
            return self._heard_at if self.units and not self._end_heard else NEVER
        first = self.flights.get(self.settled_units)
        if first is None or not first.receipt.pending:
            return NEVER
        later = self._end_heard or any(not flight.receipt.pending for flight in self.flights.values())
        return max(first.began, self._heard_at) if later else NEVER

    @property
    def _overdue_at(self) -> float:
        """When that is given up."""
        return self._given_up_at(self._missing_since)

    @property
    def _discards_end_at(self) -> float:
        """When the rest is given up of what the sender, by its last word, had under way; NEVER before that word."""
        if self._last_word is None or not self.flights:
            return NEVER
        posted = (flight.began for flight in self.flights.values())
        return self._given_up_at(max(self.closed_at, self._heard_at, *posted))

    def _given_up_at(self, missing_since: float) -> float:
        if missing_since == NEVER:
            return NEVER
        return self.site.options.overdue_patience.ends_at(missing_since, self._source.heard_at)

    def _overdue(self) -> None:
        self.site.metrics.stalls.labels("overdue").inc()
        missing = f"unit {self.settled_units}" if self.settled_units < len(self.units) else "the end"
        waited_s = self.site.clock() - self._missing_since
        self.fail(
            TransferFailed(
                f"The prefill worker {self.ticket.source} sent {missing} of a transfer, and it did not come for"
                f" {waited_s:.0f} s.",
                remedy="The request is retried.",
            )
        )

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
                self._heard()
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
