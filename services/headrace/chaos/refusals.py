"""Refusals: whether workers noticed a frame whose bytes were damaged, and did not merely get on without it.

Asks the workers' own counts. It changes nothing.
"""

import asyncio
from collections.abc import Sequence

import httpx

from headrace.chaos.cells import Cell, Fault
from headrace.chaos.members import Kind, Member, of_kind
from headrace.chaos.probes import gauges

REFUSED = "headrace_kv_units_refused_total"
_OF_BYTES = frozenset({Fault.TRUNCATED, Fault.CORRUPTED, Fault.CORRUPTED_HEADER})


def must_be_refused(cell: Cell) -> bool:
    """Whether a frame arrives in it that is not what its sender framed. What is damaged between two links, a message
    of theirs, ends their connection before there is a frame."""
    return cell.fault in _OF_BYTES and not cell.proxied


async def refused(client: httpx.AsyncClient, members: Sequence[Member]) -> float:
    """Frames that the decode workers among them which answer have refused, as long as they live."""
    pages = await asyncio.gather(*(gauges(client, worker) for worker in of_kind(members, Kind.DECODE)))
    return sum(
        value for page in pages if page is not None for name, value in page.items() if name.startswith(f"{REFUSED}{{")
    )
