"""The contract of Roster, over memory and a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from fixtures.eventually import eventually

from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import KvLayout
from headrace.roster.memory_roster import MemoryRoster
from headrace.roster.redis_roster import RedisRoster
from headrace.roster.roster import Roster
from headrace.store.connection import Store

LONG_S = 60.0
SHORT_S = 0.1


def worker(name: str, incarnation: str = "1") -> WorkerInfo:
    return WorkerInfo(
        ref=WorkerRef(name, incarnation),
        role=Role.DECODE,
        address="127.0.0.1:9100",
        model="smollm2-135m",
        model_digest=bytes(range(16)),
        layout=KvLayout(layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype="bfloat16"),
        max_model_len=8192,
        num_blocks=512,
        max_jobs=32,
        link="ucx",
        data_address="127.0.0.1:40001",
        protocol=1,
        pid=4242,
    )


@pytest.fixture(params=["memory", "redis"])
async def roster(request: pytest.FixtureRequest) -> AsyncIterator[Roster]:
    if request.param == "memory":
        yield MemoryRoster(look_every_s=0.05)
        return
    store = Store(request.getfixturevalue("redis_url"))
    try:
        yield RedisRoster(store, fleet=request.getfixturevalue("fleet"), look_every_s=0.05)
    finally:
        await store.close()


async def test_the_life_of_a_lease(roster: Roster) -> None:
    one, two = worker("a"), worker("b")
    # 1. Nobody is there.
    assert await roster.members() == ()
    # 2. Two join; each is seen exactly as it described itself.
    assert await roster.join(two, LONG_S)
    assert await roster.join(one, LONG_S)
    assert await roster.members() == (one, two)
    # 3. One changes what it says of itself.
    changed = replace(one, role=Role.PREFILL)
    assert await roster.renew(changed, LONG_S)
    assert await roster.members() == (changed, two)
    # 4. One leaves.
    await roster.leave(one.ref)
    assert await roster.members() == (two,)
    # 5. Leaving twice does no harm.
    await roster.leave(one.ref)
    assert await roster.members() == (two,)


async def test_a_lease_expires_and_is_taken_again(roster: Roster) -> None:
    one, two = worker("a"), worker("b")
    await roster.join(one, SHORT_S)
    await roster.join(two, SHORT_S)
    assert await roster.renew(two, LONG_S)
    await eventually(lambda: _are(roster, two))
    assert await roster.renew(one, LONG_S)
    assert await roster.members() == (one, two)


async def _are(roster: Roster, *members: WorkerInfo) -> bool:
    return await roster.members() == members


async def test_a_later_incarnation_takes_over(roster: Roster) -> None:
    old, new = worker("a", "zz"), worker("a", "aa")
    await roster.join(old, LONG_S)
    # 1. The restarted worker is in at once, though the old lease had not ended.
    assert await roster.join(new, LONG_S)
    assert await roster.members() == (new,)
    # 2. The old one, should it wake up, neither renews nor leaves in the other's place.
    assert not await roster.renew(old, LONG_S)
    await roster.leave(old.ref)
    assert await roster.members() == (new,)
    # 3. The new one goes on.
    assert await roster.renew(new, LONG_S)


async def test_an_earlier_incarnation_yields_even_if_it_came_back_first(roster: Roster) -> None:
    old, new = worker("a", "old"), worker("a", "new")
    await roster.join(old, SHORT_S)
    await roster.join(new, SHORT_S)
    await eventually(lambda: _are(roster))
    # 1. Both leases are lost. The old life is the first to renew.
    assert await roster.renew(old, LONG_S)
    # 2. The new one still takes over.
    assert await roster.renew(new, LONG_S)
    assert not await roster.renew(old, LONG_S)
    assert await roster.members() == (new,)


async def test_watching_shows_joins_changes_leaves_and_expiries(roster: Roster) -> None:
    one, two = worker("a"), worker("b")
    await roster.join(one, LONG_S)
    watching = roster.watch()
    async with asyncio.timeout(10):
        # 1. First those who are there.
        assert await anext(watching) == (one,)
        # 2. A join ends the wait; renewals do not.
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(anext(watching))
            await roster.renew(one, LONG_S)
            await roster.join(two, LONG_S)
        assert waiting.result() == (one, two)
        # 3. A new life of the same worker.
        again = worker("a", "2")
        await roster.join(again, LONG_S)
        assert await anext(watching) == (again, two)
        # 4. A leave.
        await roster.leave(again.ref)
        assert await anext(watching) == (two,)
        # 5. An expiry, which nobody announces.
        await roster.renew(two, SHORT_S)
        assert await anext(watching) == ()
    await watching.aclose()
