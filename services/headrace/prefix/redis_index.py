"""RedisIndex: the fleet's prefix index (decision 11). The scripts that make it atomic are `store/prefix_*.lua`."""

from collections.abc import Mapping
from typing import cast

from headrace.core.blocks import HASH_BYTES, IndexUpdate
from headrace.core.fleet import WorkerRef
from headrace.prefix.index import Change, ChangeKind, Head, Snapshot
from headrace.store.connection import Store, StreamEntry
from headrace.store.keys import holder, key, ref_of

# Longer than an update can be on its way: TCP gives up on a connection after some 15 minutes.
_REMEMBER_DROPPED_MS = 20 * 60 * 1000


class RedisIndex:
    """PrefixIndex and PrefixSource over a Store. history: how many changes the stream keeps for slow followers."""

    def __init__(self, store: Store, *, fleet: str = "default", history: int = 10_000) -> None:
        self._store = store
        self._fleet = fleet
        self._history = history
        self._updates = key(fleet, "prefix-updates")
        self._holders = key(fleet, "prefix-holders")

    async def apply(self, update: IndexUpdate, ttl_s: float) -> bool:
        """See PrefixIndex."""
        args = (
            holder(update.worker),
            update.sequence,
            int(update.reset),
            b"".join(update.stored),
            b"".join(update.evicted),
            round(ttl_s * 1000),
            self._history,
        )
        return await self._store.run("prefix_apply", self._keys(update.worker), args) == 1

    async def renew(self, ref: WorkerRef, ttl_s: float) -> bool:
        """See PrefixIndex."""
        return await self._store.run("prefix_renew", (self._entry(ref),), (round(ttl_s * 1000),)) == 1

    async def drop(self, ref: WorkerRef) -> None:
        """See PrefixIndex."""
        await self._store.run("prefix_drop", self._keys(ref), (holder(ref), _REMEMBER_DROPPED_MS, self._history))

    async def heads(self) -> Mapping[WorkerRef, Head]:
        """See PrefixSource."""
        reply = await self._store.run("prefix_heads", (self._holders,), (key(self._fleet, "prefix", ""),))
        rows = cast(list[tuple[bytes, bytes, bytes, int]], reply)
        return {
            ref_of(name.decode()): Head(int(sequence), count, int(digest, 16)) for name, sequence, digest, count in rows
        }

    async def snapshot(self, ref: WorkerRef) -> Snapshot | None:
        """See PrefixSource."""
        reply = await self._store.run("prefix_snapshot", (self._entry(ref),), ())
        if reply is None:
            return None
        sequence, joined = cast(tuple[bytes, bytes], reply)
        return Snapshot(int(sequence), frozenset(_split(joined)))

    async def tail(self) -> bytes:
        """See PrefixSource."""
        return await self._store.last_id(self._updates)

    async def changes(self, after: bytes, wait_s: float) -> tuple[bytes, tuple[Change, ...]]:
        """See PrefixSource."""
        entries = await self._store.follow(self._updates, after, wait_s)
        position = entries[-1].id if entries else after
        return position, tuple(_change(entry) for entry in entries)

    def _entry(self, ref: WorkerRef) -> str:
        return key(self._fleet, "prefix", holder(ref))

    def _keys(self, ref: WorkerRef) -> tuple[str, ...]:
        return self._entry(ref), self._updates, self._holders, key(self._fleet, "prefix-ended", holder(ref))


def _change(entry: StreamEntry) -> Change:
    fields = entry.fields
    return Change(
        worker=ref_of(fields[b"holder"].decode()),
        kind=ChangeKind(fields[b"kind"].decode()),
        sequence=int(fields[b"sequence"]),
        stored=_split(fields.get(b"stored", b"")),
        evicted=_split(fields.get(b"evicted", b"")),
    )


def _split(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
