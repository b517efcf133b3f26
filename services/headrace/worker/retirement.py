"""Retirement: how the jobs of a worker that is leaving come to their end, within a bounded time."""

import asyncio

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.jobs import Outcome
from headrace.worker.legs import Legs

log = structlog.get_logger()

_RELEASE_S = 10.0


async def retire(legs: Legs, grace_s: float, error: HeadraceError) -> None:
    """Let the jobs run for at most `grace_s`, end what is left with `error`, and return once their pages are back.

    Pages that a transfer does not let go of in time are reported and left where they are (I6).
    """
    if await _empty_within(legs, grace_s):
        return
    for leg in legs:
        leg.end(Outcome.FAILED, error)
    if not await _empty_within(legs, _RELEASE_S):
        log.error("worker.unreleased", jobs=len(legs))


async def _empty_within(legs: Legs, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await legs.empty()
    except TimeoutError:
        return False
    return True
