"""Lease: keeps one worker incarnation in the roster for as long as it runs.

Knows when to renew. What else has to live as long as the lease (the worker's entry in the prefix index) is handed
in as callables, so that the roster need not know it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from headrace.core.errors import Unavailable
from headrace.core.fleet import WorkerInfo
from headrace.roster.roster import Roster

log = structlog.get_logger()

_LEAVE_S = 3.0


class Lease:
    """`run` takes the lease, renews it, and gives it back when cancelled.

    A roster that is away, or a later life that holds the lease, ends nothing: the worker goes on serving the
    routers it is attached to, and the lease is taken when it can be. Until it was taken once nobody knows of the
    worker.
    """

    def __init__(
        self,
        roster: Roster,
        info: WorkerInfo,
        *,
        renew_also: Callable[[float], Awaitable[None]],
        leave_also: Callable[[], Awaitable[None]],
        ttl_s: float = 10.0,
        every_s: float = 3.0,
    ) -> None:
        """renew_also is called with ttl_s after each renewal, leave_also before leaving; both may raise Unavailable."""
        self._roster = roster
        self._info = info
        self._renew_also = renew_also
        self._leave_also = leave_also
        self._ttl_s = ttl_s
        self._every_s = every_s
        self._state = "new"
        self._joined = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether the last renewal succeeded."""
        return self._state == "held"

    async def joined(self) -> None:
        """Return once the lease was held for the first time."""
        await self._joined.wait()

    async def run(self) -> None:
        """Until cancelled. Leaving is bounded in time; if it fails the lease expires by itself."""
        try:
            while True:
                await self._renew()
                await asyncio.sleep(self._every_s)
        finally:
            await self._leave()

    async def _renew(self) -> None:
        try:
            first = self._state == "new"
            held = await (self._roster.join if first else self._roster.renew)(self._info, self._ttl_s)
            await self._renew_also(self._ttl_s)
        except Unavailable:
            self._note("lost")
            return
        self._note("held" if held else "superseded")
        if held:
            self._joined.set()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave_also()
                await self._roster.leave(self._info.ref)
        except (Unavailable, TimeoutError) as error:
            log.warning("lease.not_returned", worker=str(self._info.ref), reason=str(error))
        else:
            log.info("lease.returned", worker=str(self._info.ref))

    def _note(self, state: str) -> None:
        if state != self._state:
            self._state = state
            log.info(f"lease.{state}", worker=str(self._info.ref))
