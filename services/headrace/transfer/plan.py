"""The units of a transfer: a pure function of its ticket, so that both sides know them before the first byte.

Owns how a ticket is cut and which tickets can be carried at all. It knows no buffers and no links.
"""

from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.link import MAX_UNITS


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of whole blocks that travels as one frame. first_block: offset within the ticket's own run, from 0."""

    index: int
    first_block: int
    block_count: int

    @property
    def end_block(self) -> int:
        return self.first_block + self.block_count


def units(ticket: Ticket) -> tuple[Unit, ...]:
    """The ticket's blocks in runs of `unit_blocks`; the last unit may be shorter. No blocks, no units."""
    step = ticket.unit_blocks
    return tuple(
        Unit(index, first, min(step, ticket.block_count - first))
        for index, first in enumerate(range(0, ticket.block_count, step))
    )


def check_ticket(ticket: Ticket, local: KvLayout, link: str, largest_unit_blocks: int) -> None:
    """Raises InvalidRequest if this worker cannot carry `ticket`.

    Source and target must lay pages out alike today: a block is then one run of bytes for both.
    """
    if ticket.layout != local:
        raise InvalidRequest(
            f"The transfer is for KV pages laid out as {ticket.layout}, and this worker's are {local}.",
            remedy="Give prefill and decode workers the same model, KV dtype and block size.",
        )
    if ticket.link != link:
        raise InvalidRequest(
            f"The transfer is to travel by {ticket.link!r}, and this worker's link is {link!r}.",
            remedy="Give prefill and decode workers the same --link.",
        )
    if not 1 <= ticket.unit_blocks <= largest_unit_blocks:
        raise InvalidRequest(f"A unit of {ticket.unit_blocks} blocks is not between 1 and {largest_unit_blocks}.")
    if ticket.block_count < 0 or -(-ticket.block_count // ticket.unit_blocks) > MAX_UNITS:
        raise InvalidRequest(f"{ticket.block_count} blocks make no transfer of 0 to {MAX_UNITS} units.")
    if len(ticket.transfer) != 16 or len(ticket.secret) != 16:
        raise InvalidRequest("A ticket's transfer id and secret must be 16 bytes each.")
