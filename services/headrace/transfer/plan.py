"""The units of a transfer: a pure function of its ticket, so that both sides know them before the first byte.

Owns how a ticket is cut and which tickets can be carried at all. It knows no buffers and no links.
"""

from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.core.layout import KvLayout, layout_difference
from headrace.core.ticket import Ticket
from headrace.transfer.link import MAX_UNITS


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of whole wire blocks that travels as one frame. first_block: offset within the ticket's own run, from 0."""

    index: int
    first_block: int
    block_count: int

    @property
    def end_block(self) -> int:
        return self.first_block + self.block_count


def units(ticket: Ticket) -> tuple[Unit, ...]:
    """The ticket's blocks in runs of `unit_blocks`; the last unit may be shorter. No blocks, no units.

    Between pages of two sizes the first one may be shorter too, so that the others begin where pages of both ends do.
    """
    count, step = ticket.block_count, ticket.unit_blocks
    starts = [0, *range(step - _early(ticket), count, step)] if count else []
    return tuple(
        Unit(index, first, end - first)
        for index, (first, end) in enumerate(zip(starts, [*starts[1:], count], strict=False))
    )


def _early(ticket: Ticket) -> int:
    """How many blocks after the beginning of a unit the ticket's begin."""
    return ticket.first_block % ticket.unit_blocks if ticket.wire_tokens else 0


def check_ticket(ticket: Ticket, local: KvLayout, link: str, largest_unit_blocks: int) -> None:
    """Raises InvalidRequest if this worker cannot carry `ticket`. largest_unit_blocks: in blocks of its own pages."""
    if differs := layout_difference(local, ticket.layout) or layout_difference(local, ticket.wire):
        raise InvalidRequest(
            f"This worker and {ticket.target} cannot exchange KV pages: {differs}.",
            remedy="Give prefill and decode workers the same model and KV dtype.",
        )
    wire = ticket.wire.block_tokens
    if not 0 < wire <= local.block_tokens or local.block_tokens % wire or ticket.layout.block_tokens % wire:
        raise InvalidRequest(
            f"Wire blocks of {wire} tokens make up no pages of {local.block_tokens} and {ticket.layout.block_tokens}."
        )
    if ticket.link != link:
        raise InvalidRequest(
            f"The transfer is to travel by {ticket.link!r}, and this worker's link is {link!r}.",
            remedy="Give prefill and decode workers the same --link.",
        )
    most = largest_unit_blocks * local.block_tokens // wire
    if not 1 <= ticket.unit_blocks <= most:
        raise InvalidRequest(f"A unit of {ticket.unit_blocks} wire blocks is not between 1 and {most}.")
    if ticket.block_count < 0 or -(-(_early(ticket) + ticket.block_count) // ticket.unit_blocks) > MAX_UNITS:
        raise InvalidRequest(f"{ticket.block_count} blocks make no transfer of 0 to {MAX_UNITS} units.")
    if len(ticket.transfer) != 16 or len(ticket.secret) != 16:
        raise InvalidRequest("A ticket's transfer id and secret must be 16 bytes each.")
