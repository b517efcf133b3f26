"""Everything that lives in Redis, while Redis is killed, frozen and lost. I7: an outage there is none here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import redis.asyncio as aioredis
from fixtures.eventually import eventually
from fixtures.redis_server import RedisServer

from headrace.core.blocks import IndexUpdate
from headrace.core.errors import Unavailable
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import KvLayout
from headrace.prefix.publisher import Publisher
from headrace.prefix.redis_index import RedisIndex
from headrace.prefix.replica import Replica
from headrace.roster.lease import Lease
from headrace.roster.redis_roster import RedisRoster
from headrace.store.connection import Store
from headrace.store.keys import holder, key

LONG_S = 60.0
BLOCKS = tuple(number.to_bytes(16, "little") for number in range(1, 31))
INFO = WorkerInfo(
    ref=WorkerRef("decode-0", "a1"),
    role=Role.DECODE,
    address="127.0.0.1:9100",
    model="m",
    model_digest=bytes(16),
    layout=KvLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32"),
    max_model_len=512,
    num_blocks=64,
    max_jobs=8,
    link="tcp",
    data_address="127.0.0.1:1",
    protocol=1,
    pid=1,
)


class Worker:
    """What a worker process keeps in Redis."""

    def __init__(self, store: Store, info: WorkerInfo = INFO, ttl_s: float = LONG_S) -> None:
        self.info = info
        self.roster = RedisRoster(store)
        self.publisher = Publisher(RedisIndex(store), info.ref, ttl_s=ttl_s)
        self.lease = Lease(
            self.roster,
            info,
            renew_also=self.publisher.renew,
            leave_also=self.publisher.drop,
            ttl_s=ttl_s,
            every_s=0.05,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.publisher.run()), asyncio.create_task(self.lease.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Router:
    """What a router process reads there."""

    def __init__(self, store: Store) -> None:
        self.replica = Replica(RedisIndex(store), check_every_s=0.2)
        self.members: tuple[WorkerInfo, ...] = ()
        self._roster = RedisRoster(store, look_every_s=0.05)

    async def _watch(self) -> None:
        async for members in self._roster.watch():
            self.members = members

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        await self.replica.start()
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self.replica.close()


@pytest.fixture
async def stores(redis_server: RedisServer) -> AsyncIterator[tuple[Store, Store]]:
    """One for the worker, one for the router: they are two processes."""
    stores = Store(redis_server.url, deadline_s=0.5), Store(redis_server.url, deadline_s=0.5)
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def test_a_redis_that_comes_back_empty_is_filled_again(
    redis_server: RedisServer, stores: tuple[Store, Store]
) -> None:
    worker, router = Worker(stores[0]), Router(stores[1])
    async with router.running(), worker.running():
        # 1. The worker is known.
        worker.publisher.publish(BLOCKS[:10], ())
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 10} and router.members == (INFO,))
        # 2. Redis dies: the router notices, and goes on with what it knows.
        redis_server.kill()
        await eventually(lambda: not router.replica.following and not stores[0].healthy and not worker.lease.held)
        assert router.replica.match(BLOCKS) == {INFO.ref: 10}
        assert router.members == (INFO,)
        # 3. The worker goes on, too.
        worker.publisher.publish(BLOCKS[10:20], (BLOCKS[0],))
        worker.publisher.publish((BLOCKS[0],), ())
        # 4. Redis is back and knows nothing: everybody finds together again.
        redis_server.start()
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 20} and router.replica.following)
        await eventually(lambda: router.members == (INFO,) and worker.lease.held and stores[1].healthy)
        # 5. And goes on as before.
        worker.publisher.publish(BLOCKS[20:], ())
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 30})
    # 6. The worker has left.
    assert await RedisRoster(stores[1]).members() == ()
    assert await RedisIndex(stores[1]).heads() == {}


async def test_a_redis_that_was_emptied_under_its_users_is_filled_again(
    redis_server: RedisServer, stores: tuple[Store, Store]
) -> None:
    worker, router = Worker(stores[0]), Router(stores[1])
    async with router.running(), worker.running():
        worker.publisher.publish(BLOCKS, ())
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 30} and router.members == (INFO,))
        client = aioredis.Redis.from_url(redis_server.url)
        await client.flushall()
        await eventually(lambda: _names(client, key("default", "prefix", holder(INFO.ref))))
        await client.aclose()
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 30} and router.members == (INFO,))
        worker.publisher.publish((), BLOCKS[5:])
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 5})


async def _names(client: aioredis.Redis, name: str) -> bool:
    return bool(await client.exists(name))


async def test_a_frozen_redis_holds_nobody_beyond_the_deadline(
    redis_server: RedisServer, stores: tuple[Store, Store]
) -> None:
    store = stores[0]
    index, roster = RedisIndex(store), RedisRoster(store)
    await index.apply(IndexUpdate(INFO.ref, 1, BLOCKS[:1], reset=True), LONG_S)
    tail = await index.tail()
    redis_server.freeze()
    # 1. Every call ends in Unavailable, in time.
    late = IndexUpdate(INFO.ref, 2, BLOCKS[1:2])
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(
            index.apply(late, LONG_S),
            index.renew(INFO.ref, LONG_S),
            index.drop(WorkerRef("other", "1")),
            index.heads(),
            index.snapshot(INFO.ref),
            index.tail(),
            index.changes(tail, 0.1),
            roster.join(INFO, LONG_S),
            roster.leave(WorkerRef("other", "1")),
            roster.members(),
            store.ping(),
            return_exceptions=True,
        )
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 11
    assert not store.healthy
    # 2. It thaws and does what it was told meanwhile; telling it again changes nothing.
    redis_server.thaw()
    await eventually(lambda: _answers(store))
    assert await index.apply(late, LONG_S)
    snapshot = await index.snapshot(INFO.ref)
    assert snapshot is not None
    assert (snapshot.sequence, snapshot.hashes) == (2, frozenset(BLOCKS[:2]))
    assert await roster.renew(INFO, LONG_S)
    assert await roster.members() == (INFO,)


async def _answers(store: Store) -> bool:
    try:
        await store.ping()
    except Unavailable:
        return False
    return True


async def test_a_router_goes_on_through_a_frost(redis_server: RedisServer, stores: tuple[Store, Store]) -> None:
    worker, router = Worker(stores[0]), Router(stores[1])
    async with router.running(), worker.running():
        worker.publisher.publish(BLOCKS[:10], ())
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 10})
        redis_server.freeze()
        worker.publisher.publish(BLOCKS[10:], ())
        await eventually(lambda: not router.replica.following)
        assert router.replica.match(BLOCKS) == {INFO.ref: 10}
        redis_server.thaw()
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 30} and router.replica.following)
        await eventually(lambda: router.members == (INFO,))


async def test_what_a_dead_worker_left_is_gone_when_its_lease_is(
    redis_server: RedisServer, stores: tuple[Store, Store]
) -> None:
    names = {key("default", "lease", "decode-0"), key("default", "prefix", "decode-0:a1")}
    client = aioredis.Redis.from_url(redis_server.url, decode_responses=True)
    worker, router = Worker(stores[0], ttl_s=0.5), Router(stores[1])
    async with router.running():
        # 1. While it lives, its lease and its entry are there under the names that are documented.
        tasks = [asyncio.create_task(worker.publisher.run()), asyncio.create_task(_beat(worker))]
        worker.publisher.publish(BLOCKS, ())
        await eventually(lambda: router.replica.match(BLOCKS) == {INFO.ref: 30} and router.members == (INFO,))
        assert names <= set(await client.keys("headrace:*"))
        assert await client.hget(key("default", "lease", "decode-0"), "incarnation") == "a1"
        # 2. It dies without a word.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # 3. Nobody takes it for alive any longer than its lease.
        await eventually(lambda: router.replica.match(BLOCKS) == {} and router.members == ())
        assert not names & set(await client.keys("headrace:*"))
        # 4. A word of it that was still on its way is refused.
        assert not await RedisIndex(stores[0]).apply(IndexUpdate(INFO.ref, 99, BLOCKS[:1]), LONG_S)
        # 5. Its next life starts with a clean entry.
        again = replace(INFO, ref=WorkerRef("decode-0", "a2"))
        async with Worker(stores[0], again).running():
            await eventually(lambda: router.members == (again,))
            assert router.replica.match(BLOCKS) == {}
    await client.aclose()


async def _beat(worker: Worker) -> None:
    """Renew as a lease does, without giving it back at the end: that is what a kill looks like."""
    while True:
        await worker.roster.renew(worker.info, 0.5)
        await worker.publisher.renew(0.5)
        await asyncio.sleep(0.05)


async def test_two_fleets_share_a_redis_without_meeting(redis_url: str, fleet: str) -> None:
    store = Store(redis_url)
    try:
        await RedisRoster(store, fleet=f"{fleet}-a").join(INFO, LONG_S)
        await RedisIndex(store, fleet=f"{fleet}-a").apply(IndexUpdate(INFO.ref, 1, BLOCKS, reset=True), LONG_S)
        assert await RedisRoster(store, fleet=f"{fleet}-b").members() == ()
        assert await RedisIndex(store, fleet=f"{fleet}-b").heads() == {}
    finally:
        await store.close()
