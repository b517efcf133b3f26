"""What a Replica promises, over a source in memory and one in a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
import redis.asyncio as aioredis
from fixtures.eventually import eventually

from headrace.core.blocks import IndexUpdate
from headrace.core.fleet import WorkerRef
from headrace.prefix.index import Change, Head, Snapshot
from headrace.prefix.memory_index import MemoryIndex
from headrace.prefix.redis_index import RedisIndex
from headrace.prefix.replica import Replica
from headrace.store.connection import Store
from headrace.store.keys import key

Index = MemoryIndex | RedisIndex

LONG_S = 60.0
P0 = WorkerRef("prefill-0", "a")
P1 = WorkerRef("prefill-1", "b")
BLOCKS = tuple(number.to_bytes(16, "little") for number in range(1, 21))


class SlowSource:
    """A source whose changes are held back while `open` is cleared, and may be falsified on the way."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.open = asyncio.Event()
        self.open.set()
        self.lose_stored = False

    async def heads(self) -> Mapping[WorkerRef, Head]:
        return await self._index.heads()

    async def snapshot(self, ref: WorkerRef) -> Snapshot | None:
        return await self._index.snapshot(ref)

    async def tail(self) -> bytes:
        return await self._index.tail()

    async def changes(self, after: bytes, wait_s: float) -> tuple[bytes, tuple[Change, ...]]:
        await self.open.wait()
        position, changes = await self._index.changes(after, min(wait_s, 0.02))
        if not self.open.is_set():
            return after, ()
        return position, tuple(replace(one, stored=()) if self.lose_stored else one for one in changes)


@pytest.fixture(params=["memory", "redis"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    if request.param == "memory":
        yield MemoryIndex(history=4)
        return
    store = Store(request.getfixturevalue("redis_url"))
    try:
        yield RedisIndex(store, fleet=request.getfixturevalue("fleet"))
    finally:
        await store.close()


@pytest.fixture
async def source(index: Index) -> SlowSource:
    return SlowSource(index)


@pytest.fixture
async def replica(source: SlowSource) -> AsyncIterator[Replica]:
    replica = Replica(source, check_every_s=0.1)
    try:
        yield replica
    finally:
        source.open.set()
        await replica.close()


async def put(index: Index, ref: WorkerRef, sequence: int, *stored: bytes, evicted: tuple[bytes, ...] = ()) -> None:
    assert await index.apply(IndexUpdate(ref, sequence, stored, evicted, reset=sequence == 1), LONG_S)


async def matches(replica: Replica, expected: dict[WorkerRef, int]) -> None:
    await eventually(lambda: replica.match(BLOCKS) == expected)


async def test_it_follows_entries_through_their_lives(index: Index, replica: Replica) -> None:
    # 1. Before it starts it knows nothing.
    await put(index, P0, 1, *BLOCKS[:5])
    assert replica.match(BLOCKS) == {}
    # 2. It loads what is there.
    await replica.start()
    await matches(replica, {P0: 5})
    # 3. It follows additions and evictions; blocks behind a hole do not count.
    await put(index, P0, 2, *BLOCKS[5:8])
    await matches(replica, {P0: 8})
    await put(index, P0, 3, evicted=(BLOCKS[2],))
    await matches(replica, {P0: 2})
    # 4. A worker that it did not know appears.
    await put(index, P1, 1, *BLOCKS)
    await matches(replica, {P0: 2, P1: 20})
    # 5. An entry begins anew.
    assert await index.apply(IndexUpdate(P0, 4, BLOCKS[:1], reset=True), LONG_S)
    await matches(replica, {P0: 1, P1: 20})
    # 6. A worker leaves.
    await index.drop(P1)
    await matches(replica, {P0: 1})


async def test_an_entry_that_expired_is_forgotten(index: Index, replica: Replica) -> None:
    await put(index, P0, 1, *BLOCKS)
    await replica.start()
    await matches(replica, {P0: 20})
    assert await index.renew(P0, 0.05)
    await matches(replica, {})


async def lose_history(index: Index, request: pytest.FixtureRequest) -> None:
    """Make the stream forget all that the replica has not read. (In memory the short history does it.)"""
    if isinstance(index, RedisIndex):
        client = aioredis.Redis.from_url(request.getfixturevalue("redis_url"))
        await client.xtrim(key(request.getfixturevalue("fleet"), "prefix-updates"), maxlen=1, approximate=False)
        await client.aclose()


async def test_a_reader_overtaken_by_the_streams_end_reloads(
    index: Index, source: SlowSource, replica: Replica, request: pytest.FixtureRequest
) -> None:
    # 1. The replica reads nothing while P1 has one change and P0 more than the stream keeps.
    await put(index, P0, 1, BLOCKS[0])
    await put(index, P1, 1, BLOCKS[0])
    await replica.start()
    await matches(replica, {P0: 1, P1: 1})
    source.open.clear()
    await put(index, P1, 2, *BLOCKS[1:3])
    for sequence in range(2, 12):
        await put(index, P0, sequence, BLOCKS[sequence - 1])
    await lose_history(index, request)
    # 2. P0's next change shows the gap; P1, which has no next change, is found by comparison.
    source.open.set()
    await matches(replica, {P0: 11, P1: 3})


async def test_a_copy_that_went_another_way_is_unmasked(index: Index, source: SlowSource, replica: Replica) -> None:
    await put(index, P0, 1, *BLOCKS[:3])
    await replica.start()
    await matches(replica, {P0: 3})
    # 1. A change arrives in the right order, but its content does not.
    source.lose_stored = True
    await put(index, P0, 2, *BLOCKS[3:6])
    # 2. The digests differ: the entry is loaded anew.
    await matches(replica, {P0: 6})


async def test_closing_ends_following(index: Index, replica: Replica) -> None:
    await replica.start()
    await eventually(lambda: replica.following)
    await replica.close()
    assert not replica.following
    assert replica.match(BLOCKS) == {}


class BrokenSource(SlowSource):
    """A source with a defect."""

    async def tail(self) -> bytes:
        raise ZeroDivisionError


async def test_a_defect_is_not_hidden(index: Index) -> None:
    replica = Replica(BrokenSource(index))
    await replica.start()
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await replica.close()
