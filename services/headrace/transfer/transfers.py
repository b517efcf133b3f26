"""Transfers: all live legs of one worker, and how commands and time reach them.

Owns which legs exist. It knows no threads: everything is called on one, the one that drives the link.
"""

from collections.abc import Callable
from functools import partial

import structlog

from headrace.core.errors import HeadraceError, InternalError, InvalidRequest
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, Told, TransferReport, TransferStatus
from headrace.transfer.inbound import Inbound
from headrace.transfer.leg import Leg
from headrace.transfer.meetings import Meetings
from headrace.transfer.outbound import Outbound
from headrace.transfer.plan import check_ticket
from headrace.transfer.site import Site

_log = structlog.get_logger()


class Transfers:
    """The legs under way. A leg leaves when it is over; its report came before or with that."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._legs: dict[tuple[bytes, Side], Leg] = {}
        self._broken: HeadraceError | None = None
        self._meetings = Meetings(site.link, site.metrics, site.options.silent_s)

    @property
    def empty(self) -> bool:
        return not self._legs

    @property
    def due(self) -> float:
        """When `step` must run next even if nothing happens, on the site's clock."""
        return min(self._meetings.due, *(leg.due for leg in self._legs.values()), float("inf"))

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        def make(site: Site) -> Leg:
            if len(blocks) != ticket.block_count:
                raise InvalidRequest(f"{len(blocks)} pages are no place for {ticket.block_count} blocks.")
            return Inbound(site, ticket, blocks, timeout_s)

        self._open(ticket, Side.RECEIVER, make)

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        self._open(ticket, Side.SENDER, lambda site: Outbound(site, ticket, timeout_s))

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        leg = self._legs.get((transfer, Side.SENDER))
        if isinstance(leg, Outbound):
            leg.advance(blocks)

    def cancel(self, transfer: bytes, *, lost: bool = False) -> None:
        for side in Side:
            leg = self._legs.get((transfer, side))
            if leg is not None:
                self._try(leg, leg.lose_peer if lost else leg.cancel)

    def meet(self, address: str, told: Told) -> None:
        if self._broken is not None:
            told(self._broken.message, 0.0)
        else:
            self._meetings.begin(address, told, self._site.clock())

    def wind_up(self) -> None:
        """Cancel everything, for the last time: senders still deliver their End, receivers wait for nobody's."""
        self._meetings.end("the worker stops", self._site.clock())
        for leg in self._legs.values():
            self._try(leg, leg.cancel)
            if leg.side is Side.RECEIVER:
                self._try(leg, leg.give_up)

    def give_up_all(self) -> None:
        """Ask for everything back that peers still hold."""
        for leg in self._legs.values():
            self._try(leg, leg.give_up)

    def step(self) -> None:
        """Let every leg do what it can. What fails inside one ends that one.

        Those with the fewest frames under way go first, and of these who sent none for longest: so what one peer, or
        all of them, may have at once is dealt out in turns, and a short transfer does not wait for a long one's end.
        """
        self._meetings.step(self._site.clock())
        legs = list(self._legs.values())
        for leg in legs:
            self._run(leg, leg.collect)
        if len(legs) > 1:
            legs.sort(key=lambda leg: (len(leg.flights), leg.turn))
        for leg in legs:
            self._run(leg, leg.step)
            if leg.over:
                del self._legs[leg.ticket.transfer, leg.side]

    def break_down(self, error: HeadraceError) -> None:
        """The link is of no use any more: every transfer fails, now and from now on. Slabs stay where they are."""
        self._broken = error
        self._meetings.end(error.message, self._site.clock())
        for leg in self._legs.values():
            self._try(leg, partial(leg.abandon, error))
        self._legs.clear()

    def _run(self, leg: Leg, act: Callable[[], None]) -> None:
        was_open = leg.open
        try:
            act()
        except Exception as error:
            _log_crash(leg)
            if was_open:
                self._try(leg, partial(leg.fail, InternalError(f"The transfer broke: {error}.")))
            else:
                leg.write_off()

    def _try(self, leg: Leg, act: Callable[[], None]) -> None:
        """What fails in one leg does not stop the others."""
        try:
            act()
        except Exception:
            _log_crash(leg)

    def _open(self, ticket: Ticket, side: Side, make: Callable[[Site], Leg]) -> None:
        known = self._legs.get((ticket.transfer, side))
        if known is not None and known.open:
            # A report would carry the other's id, and open its fence while it uses its pages.
            _log.error("transfer.repeated", transfer=ticket.transfer.hex(), side=side.value)
            return
        try:
            if self._broken is not None:
                raise self._broken
            if known is not None:
                raise InternalError("A transfer with this id was here before.")
            check_ticket(ticket, self._site.pages.layout, self._site.link_name, self._site.options.unit_blocks)
            self._legs[ticket.transfer, side] = make(self._site.for_blocks_of(ticket))
        except HeadraceError as error:
            self._refuse(ticket, side, error)
        except Exception as error:
            _log.exception("transfer.not_opened", transfer=ticket.transfer.hex(), side=side.value)
            self._refuse(ticket, side, InternalError(f"The transfer could not begin: {error}."))

    def _refuse(self, ticket: Ticket, side: Side, error: HeadraceError) -> None:
        self._site.close_books(TransferReport(ticket.transfer, side, TransferStatus.FAILED, 0, 0, 0.0, error))


def _log_crash(leg: Leg) -> None:
    _log.exception("transfer.crashed", transfer=leg.ticket.transfer.hex(), side=leg.side.value)
