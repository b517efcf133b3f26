"""RedisRoster: the fleet's leases. The scripts that make them atomic are `store/lease_*.lua`."""

from collections.abc import AsyncGenerator
from typing import cast

import structlog

from headrace.core.errors import InvalidRequest, Unavailable
from headrace.core.fleet import WorkerInfo, WorkerRef
from headrace.roster.record import decode, encode
from headrace.store.backoff import Backoff
from headrace.store.connection import Store
from headrace.store.keys import key

log = structlog.get_logger()

# Events only wake watchers, who then read the members: few suffice.
_EVENTS = 128


class RedisRoster:
    """Roster over a Store. look_every_s: how often watchers look for expired leases."""

    def __init__(self, store: Store, *, fleet: str = "default", look_every_s: float = 1.0) -> None:
        self._store = store
        self._fleet = fleet
        self._look_every_s = look_every_s
        self._workers = key(fleet, "workers")
        self._events = key(fleet, "lease-events")
        # What Redis said of when each life began. The worker keeps it, so the order outlives a Redis that lost it.
        self._orders: dict[WorkerRef, bytes] = {}
        self._unreadable: frozenset[bytes] = frozenset()

    async def join(self, info: WorkerInfo, ttl_s: float) -> bool:
        """See Roster."""
        self._orders.pop(info.ref, None)
        return await self.renew(info, ttl_s)

    async def renew(self, info: WorkerInfo, ttl_s: float) -> bool:
        """See Roster."""
        ref = info.ref
        args = (
            ref.worker,
            ref.incarnation,
            self._orders.get(ref, b"0"),
            encode(info),
            round(ttl_s * 1000),
            _EVENTS,
        )
        reply = await self._store.run("lease_put", self._keys(ref), args)
        if reply is None:
            return False
        self._orders[ref] = cast(bytes, reply)
        return True

    async def leave(self, ref: WorkerRef) -> None:
        """See Roster."""
        await self._store.run("lease_leave", self._keys(ref), (ref.worker, ref.incarnation, _EVENTS))
        self._orders.pop(ref, None)

    async def members(self) -> tuple[WorkerInfo, ...]:
        """See Roster. A lease that cannot be read is skipped and logged once."""
        reply = await self._store.run("lease_members", (self._workers,), (key(self._fleet, "lease", ""),))
        members: list[WorkerInfo] = []
        unreadable: set[bytes] = set()
        for record in cast(list[bytes], reply):
            try:
                members.append(decode(record))
            except InvalidRequest as error:
                unreadable.add(record)
                if record not in self._unreadable:
                    log.warning("roster.member_skipped", reason=error.message)
        self._unreadable = frozenset(unreadable)
        return tuple(sorted(members, key=lambda info: info.ref))

    async def watch(self) -> AsyncGenerator[tuple[WorkerInfo, ...], None]:
        """See Roster."""
        seen: tuple[WorkerInfo, ...] | None = None
        position: bytes | None = None
        backoff = Backoff()
        while True:
            try:
                position = await self._next_event(position)
                members = await self.members()
            except Unavailable:
                position = None
                await backoff.pause()
                continue
            backoff.reset()
            if members != seen:
                seen = members
                yield members

    async def _next_event(self, position: bytes | None) -> bytes:
        if position is None:
            return await self._store.last_id(self._events)
        entries = await self._store.follow(self._events, position, self._look_every_s)
        return entries[-1].id if entries else position

    def _keys(self, ref: WorkerRef) -> tuple[str, ...]:
        return key(self._fleet, "lease", ref.worker), self._workers, self._events
