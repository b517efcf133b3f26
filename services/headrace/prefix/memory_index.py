"""MemoryIndex: the prefix index inside one process, for tests and clusters of one process."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.core.blocks import IndexUpdate
from headrace.core.fleet import WorkerRef
from headrace.prefix.holders import digest_of
from headrace.prefix.index import Change, ChangeKind, Head, Snapshot


@dataclass(slots=True)
class _Entry:
    sequence: int
    expires_at: float
    hashes: set[bytes] = field(default_factory=set)


class MemoryIndex:
    """PrefixIndex and PrefixSource over a dictionary. All on one event loop.

    clock: seconds, never going back. history: how many changes slow followers may lag behind.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, history: int = 10_000) -> None:
        self._clock = clock
        self._entries: dict[WorkerRef, _Entry] = {}
        self._dropped: set[WorkerRef] = set()
        self._changes: deque[Change] = deque(maxlen=history)
        self._made = 0
        self._news = asyncio.Event()

    async def apply(self, update: IndexUpdate, ttl_s: float) -> bool:
        """See PrefixIndex."""
        if update.worker in self._dropped:
            return False
        entry = self._live(update.worker)
        if entry is not None and update.sequence <= entry.sequence:
            return True
        expires_at = self._clock() + ttl_s
        if update.reset:
            entry = self._entries[update.worker] = _Entry(update.sequence, expires_at)
        elif entry is None or update.sequence != entry.sequence + 1:
            return False
        entry.hashes -= set(update.evicted)
        entry.hashes |= set(update.stored)
        entry.sequence, entry.expires_at = update.sequence, expires_at
        if update.reset:
            self._tell(Change(update.worker, ChangeKind.RESET, update.sequence))
        else:
            self._tell(Change(update.worker, ChangeKind.DELTA, update.sequence, update.stored, update.evicted))
        return True

    async def renew(self, ref: WorkerRef, ttl_s: float) -> bool:
        """See PrefixIndex."""
        entry = self._live(ref)
        if entry is None:
            return False
        entry.expires_at = self._clock() + ttl_s
        return True

    async def drop(self, ref: WorkerRef) -> None:
        """See PrefixIndex."""
        self._dropped.add(ref)
        if self._entries.pop(ref, None) is not None:
            self._tell(Change(ref, ChangeKind.DROPPED, 0))

    async def heads(self) -> Mapping[WorkerRef, Head]:
        """See PrefixSource."""
        live = {ref: entry for ref in tuple(self._entries) if (entry := self._live(ref)) is not None}
        return {ref: Head(entry.sequence, len(entry.hashes), digest_of(entry.hashes)) for ref, entry in live.items()}

    async def snapshot(self, ref: WorkerRef) -> Snapshot | None:
        """See PrefixSource."""
        entry = self._live(ref)
        return None if entry is None else Snapshot(entry.sequence, frozenset(entry.hashes))

    async def tail(self) -> bytes:
        """See PrefixSource."""
        return str(self._made).encode()

    async def changes(self, after: bytes, wait_s: float) -> tuple[bytes, tuple[Change, ...]]:
        """See PrefixSource."""
        seen = int(after)
        if seen >= self._made:
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                return after, ()
        missed = min(self._made - seen, len(self._changes))
        return await self.tail(), tuple(self._changes)[len(self._changes) - missed :]

    def _live(self, ref: WorkerRef) -> _Entry | None:
        entry = self._entries.get(ref)
        if entry is not None and entry.expires_at <= self._clock():
            del self._entries[ref]
            return None
        return entry

    def _tell(self, change: Change) -> None:
        self._changes.append(change)
        self._made += 1
        waiting, self._news = self._news, asyncio.Event()
        waiting.set()
