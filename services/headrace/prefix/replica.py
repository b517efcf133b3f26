"""Replica: a router's own copy of the prefix index, so that choosing a worker needs no round trip.

Loads every entry, follows the changes, and compares sequences and digests from time to time. While the index is
away it keeps answering from what it knows; when the index is back it loads everything anew.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from headrace.core.errors import Unavailable
from headrace.core.fleet import WorkerRef
from headrace.prefix.holders import HolderTable
from headrace.prefix.index import Change, ChangeKind, Head, PrefixSource
from headrace.store.backoff import Backoff

log = structlog.get_logger()


class Replica:
    """A PrefixMatcher that follows a PrefixSource. `start` and `close` it on the event loop that asks it."""

    def __init__(self, source: PrefixSource, *, check_every_s: float = 5.0) -> None:
        """check_every_s: how often entries are compared with the source: the longest that an entry which expired,
        or a change missed without a successor, stays unnoticed."""
        self._source = source
        self._check_every_s = check_every_s
        self._table = HolderTable()
        self._sequences: dict[WorkerRef, int] = {}
        self._digests: dict[WorkerRef, int] = {}
        # Per entry that was behind at the last check: the sequence that its head had then.
        self._owed: dict[WorkerRef, int] = {}
        self._following = False
        self._task: asyncio.Task[None] | None = None

    @property
    def following(self) -> bool:
        """Whether the copy is being kept up to date. False from the loss of the index until everything is reloaded."""
        return self._following

    def match(self, hashes: Sequence[bytes]) -> Mapping[WorkerRef, int]:
        """See PrefixMatcher."""
        return self._table.match(hashes)

    async def start(self) -> None:
        """Begin to follow. Returns at once, whether or not the index is there."""
        assert self._task is None, "a replica starts once"
        self._task = asyncio.create_task(self._run(), name="prefix-replica")

    async def close(self) -> None:
        """Stop following. Raises what a defect may have ended the replica with."""
        if self._task is not None:
            self._task.cancel()
            (ending,) = await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            if isinstance(ending, Exception):
                raise ending

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while True:
                try:
                    position = await self._load_all()
                    self._set_following(True)
                    backoff.reset()
                    await self._follow(position)
                except Unavailable:
                    self._set_following(False)
                    await backoff.pause()
        except Exception:
            log.exception("replica.failed")
            raise
        finally:
            self._following = False

    async def _load_all(self) -> bytes:
        # The position is taken first: what changes while the entries load is met again and told by its sequence.
        position = await self._source.tail()
        heads = await self._source.heads()
        for ref in heads.keys() | self._table.refs:
            await self._load(ref)
        return position

    async def _follow(self, position: bytes) -> None:
        loop = asyncio.get_running_loop()
        check_at = loop.time() + self._check_every_s
        while True:
            position, changes = await self._source.changes(position, max(0.0, check_at - loop.time()))
            for change in changes:
                await self._take(change)
            if loop.time() >= check_at:
                await self._check()
                check_at = loop.time() + self._check_every_s

    async def _take(self, change: Change) -> None:
        known = self._sequences.get(change.worker, 0)
        if change.kind is ChangeKind.DROPPED:
            self._forget(change.worker)
        elif change.kind is ChangeKind.DELTA and change.sequence == known + 1 and known > 0:
            self._digests[change.worker] ^= self._table.change(change.worker, change.stored, change.evicted)
            self._sequences[change.worker] = change.sequence
        elif change.sequence > known:
            await self._load(change.worker)

    async def _check(self) -> None:
        heads = await self._source.heads()
        for ref in self._table.refs - heads.keys():
            log.info("replica.entry_gone", worker=str(ref))
            self._forget(ref)
        owed, self._owed = self._owed, {}
        for ref, head in heads.items():
            if self._differs(ref, head, owed.get(ref, 0)):
                log.warning("replica.entry_differs", worker=str(ref), sequence=head.sequence)
                await self._load(ref)

    def _differs(self, ref: WorkerRef, head: Head, owed: int) -> bool:
        """Whether an entry must be reloaded. Being behind is normal while changes are on their way: it counts only
        once the sequence that was owed at the check before has still not come."""
        known = self._sequences.get(ref, 0)
        if known == head.sequence:
            return (self._table.count(ref), self._digests[ref]) != (head.count, head.digest)
        if known < head.sequence:
            self._owed[ref] = head.sequence
        return known > head.sequence or known == 0 or known < owed

    async def _load(self, ref: WorkerRef) -> None:
        snapshot = await self._source.snapshot(ref)
        if snapshot is None:
            self._forget(ref)
            return
        held = self._table.held(ref)
        change = self._table.change(ref, snapshot.hashes - held, held - snapshot.hashes)
        self._digests[ref] = self._digests.get(ref, 0) ^ change
        self._sequences[ref] = snapshot.sequence

    def _forget(self, ref: WorkerRef) -> None:
        self._table.remove(ref)
        self._sequences.pop(ref, None)
        self._digests.pop(ref, None)

    def _set_following(self, following: bool) -> None:
        if following != self._following:
            self._following = following
            log.info("replica.following" if following else "replica.on_its_own", entries=len(self._sequences))
