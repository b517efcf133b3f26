"""Publisher: announces what one worker incarnation's prefix cache holds.

Owns the sequence and the full set of held hashes. The worker tells it what changed and never waits for the index.
"""

import asyncio
from collections.abc import Iterable

import structlog

from headrace.core.blocks import IndexUpdate
from headrace.core.errors import Unavailable
from headrace.core.fleet import WorkerRef
from headrace.prefix.index import PrefixIndex
from headrace.store.backoff import Backoff

log = structlog.get_logger()


class Publisher:
    """`publish` notes changes; `run` sends them in batches, one at a time, until it is cancelled.

    An index that is away costs nothing but freshness: changes add up (a block that came and went is not sent) and
    go out when it is back. After a gap, or when the entry is gone, everything is sent again, in batches as well,
    so that the index holds a part of the truth on the way, never more than it.
    """

    def __init__(self, index: PrefixIndex, ref: WorkerRef, *, ttl_s: float = 10.0, batch: int = 2048) -> None:
        """ttl_s: how long an entry lives after an update. batch: the most hashes in one update."""
        self._index = index
        self._ref = ref
        self._ttl_s = ttl_s
        self._batch = batch
        self._held: set[bytes] = set()
        self._unsent: set[bytes] = set()
        self._reset = True
        self._sequence = 0
        self._wake = asyncio.Event()
        self._wake.set()

    def publish(self, stored: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """Note what the cache lost and gained since the last call. Call it on the event loop."""
        gone, come = set(evicted), set(stored)
        self._held -= gone
        self._held |= come
        self._unsent |= gone | come
        if gone or come:
            self._wake.set()

    async def renew(self, ttl_s: float) -> None:
        """Prolong the entry; if it is gone, have it sent again. Raises Unavailable."""
        if not await self._index.renew(self._ref, ttl_s) and self._sequence > 0:
            self._resend()

    async def drop(self) -> None:
        """Withdraw everything for good, once `run` has ended. Raises Unavailable (then the entry expires)."""
        await self._index.drop(self._ref)

    async def run(self) -> None:
        """Send until cancelled. The first update announces an empty entry or what is held by then."""
        backoff = Backoff()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._reset or self._unsent:
                await self._send(self._next_update(), backoff)

    def _next_update(self) -> IndexUpdate:
        reset, self._reset = self._reset, False
        if reset:
            self._unsent = set(self._held)
        taken = {self._unsent.pop() for _ in range(min(self._batch, len(self._unsent)))}
        self._sequence += 1
        return IndexUpdate(
            worker=self._ref,
            sequence=self._sequence,
            stored=tuple(taken & self._held),
            evicted=tuple(taken - self._held),
            reset=reset,
        )

    async def _send(self, update: IndexUpdate, backoff: Backoff) -> None:
        # A reset that became due meanwhile replaces the update, whether or not it arrived.
        while not self._reset:
            try:
                accepted = await self._index.apply(update, self._ttl_s)
            except Unavailable:
                await backoff.pause()
                continue
            if accepted:
                backoff.reset()
                return
            log.info("publisher.refused", worker=str(self._ref), sequence=update.sequence, reset=update.reset)
            self._resend()
            if update.reset:
                await backoff.pause()

    def _resend(self) -> None:
        self._reset = True
        self._wake.set()
