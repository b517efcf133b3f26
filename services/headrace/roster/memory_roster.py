"""MemoryRoster: the roster inside one process, for tests and clusters of one process."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from headrace.core.fleet import WorkerInfo, WorkerRef


@dataclass(frozen=True, slots=True)
class _Held:
    info: WorkerInfo
    order: int
    expires_at: float


class MemoryRoster:
    """Roster over a dictionary. All on one event loop. clock: seconds, never going back.

    look_every_s: how often watchers look for expired leases.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, look_every_s: float = 1.0) -> None:
        self._clock = clock
        self._look_every_s = look_every_s
        self._leases: dict[str, _Held] = {}
        self._orders: dict[WorkerRef, int] = {}
        self._joined = 0
        self._news = asyncio.Event()

    async def join(self, info: WorkerInfo, ttl_s: float) -> bool:
        """See Roster."""
        self._orders.pop(info.ref, None)
        return await self.renew(info, ttl_s)

    async def renew(self, info: WorkerInfo, ttl_s: float) -> bool:
        """See Roster."""
        order = self._order(info.ref)
        held = self._live(info.ref.worker)
        if held is not None and held.order > order:
            return False
        self._leases[info.ref.worker] = _Held(info, order, self._clock() + ttl_s)
        if held is None or held.info != info:
            self._tell()
        return True

    async def leave(self, ref: WorkerRef) -> None:
        """See Roster."""
        held = self._live(ref.worker)
        if held is not None and held.info.ref == ref:
            del self._leases[ref.worker]
            self._tell()

    async def members(self) -> tuple[WorkerInfo, ...]:
        """See Roster."""
        held = (self._live(worker) for worker in tuple(self._leases))
        return tuple(sorted((one.info for one in held if one is not None), key=lambda info: info.ref))

    async def watch(self) -> AsyncGenerator[tuple[WorkerInfo, ...], None]:
        """See Roster."""
        seen: tuple[WorkerInfo, ...] | None = None
        while True:
            news = self._news
            members = await self.members()
            if members != seen:
                seen = members
                yield members
            try:
                async with asyncio.timeout(self._look_every_s):
                    await news.wait()
            except TimeoutError:
                continue

    def _order(self, ref: WorkerRef) -> int:
        if ref not in self._orders:
            self._joined += 1
            self._orders[ref] = self._joined
        return self._orders[ref]

    def _live(self, worker: str) -> _Held | None:
        held = self._leases.get(worker)
        if held is not None and held.expires_at <= self._clock():
            del self._leases[worker]
            return None
        return held

    def _tell(self) -> None:
        waiting, self._news = self._news, asyncio.Event()
        waiting.set()
