"""Retirement: how the jobs of a worker that is leaving come to their end, within a bounded time.

Owns when they must have ended. Who asks for it, and what else stops then, is the worker's affair.
"""

import asyncio

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.jobs import Outcome
from headrace.worker.legs import Legs

log = structlog.get_logger()

_RELEASE_S = 10.0
_NEVER = float("inf")


class Retirement:
    """error: what jobs end with that outlast their time. Made and used on the event loop.

    It may be asked for again, also when whoever asked first was cancelled or still waits: the times run on from the
    first call, and who says less shortens them for all.
    """

    def __init__(self, legs: Legs, error: HeadraceError) -> None:
        self._legs = legs
        self._error = error
        self._loop = asyncio.get_running_loop()
        self._end_by = _NEVER
        self._release_by = _NEVER

    async def run(self, grace_s: float) -> None:
        """Let the jobs run for at most `grace_s`, end what is left, and return once their pages are back.

        Pages that a transfer does not let go of in time are reported and left where they are (I6).
        """
        self._end_by = min(self._end_by, self._loop.time() + grace_s)
        if await self._empty_by(self._end_by):
            return
        self.end_rest()
        self._release_by = min(self._release_by, self._loop.time() + _RELEASE_S)
        if not await self._empty_by(self._release_by):
            log.error("worker.unreleased", jobs=len(self._legs))

    def end_rest(self) -> None:
        """No job here goes on: each is told its end, unless it has heard it."""
        for leg in self._legs:
            leg.end(Outcome.FAILED, self._error)

    async def _empty_by(self, when: float) -> bool:
        try:
            async with asyncio.timeout_at(when):
                await self._legs.empty()
        except TimeoutError:
            return False
        return True
