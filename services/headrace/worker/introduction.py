"""Introduction: does a router's Meet, so that a prefill worker knows the way to a decode worker before its first pages.

Only routers say whom to meet: a worker knows no other beyond this and a ticket (decision 1).
"""

import asyncio

import structlog

from headrace.core.jobs import Meet, Met
from headrace.transfer.carrier import Carrier
from headrace.worker.outbox import Outbox

log = structlog.get_logger()


def introduce(meet: Meet, carrier: Carrier, link: str, outbox: Outbox) -> None:
    """Call the peer and tell the router what came of it. link: the name of the carrier's."""
    if meet.link != link:
        outbox.reply(Met(meet.peer, f"it listens on link {meet.link}, this is {link}", 0.0))
        return
    loop = asyncio.get_running_loop()

    def told(reason: str, seconds: float) -> None:
        loop.call_soon_threadsafe(answer, reason, seconds)

    def answer(reason: str, seconds: float) -> None:
        log.info("peer.met", peer=str(meet.peer), router=outbox.router, ms=round(seconds * 1000), reason=reason)
        outbox.reply(Met(meet.peer, reason, seconds * 1000))

    carrier.meet(meet.address, told)
