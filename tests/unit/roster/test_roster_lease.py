"""The lease of one worker, over a roster in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fixtures.eventually import eventually

from headrace.core.errors import Unavailable
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import KvLayout
from headrace.roster.lease import Lease
from headrace.roster.memory_roster import MemoryRoster

INFO = WorkerInfo(
    WorkerRef("w", "1"), Role.LOCAL, "h:1", "m", b"\x01", KvLayout(1, 1, 8, 16, "float32"), 64, 4, 1, "tcp", "", 1, 9
)
LONG_S = 60.0


class Companion:
    """What lives as long as the lease does."""

    def __init__(self) -> None:
        self.renewals: list[float] = []
        self.left = False
        self.away = False

    async def renew(self, ttl_s: float) -> None:
        if self.away:
            raise Unavailable("It is away.")
        self.renewals.append(ttl_s)

    async def leave(self) -> None:
        if self.away:
            raise Unavailable("It is away.")
        self.left = True


@pytest.fixture
def roster() -> MemoryRoster:
    return MemoryRoster()


@pytest.fixture
def companion() -> Companion:
    return Companion()


@asynccontextmanager
async def running(
    roster: MemoryRoster, companion: Companion, info: WorkerInfo = INFO, ttl_s: float = LONG_S
) -> AsyncIterator[Lease]:
    lease = Lease(roster, info, renew_also=companion.renew, leave_also=companion.leave, ttl_s=ttl_s, every_s=0.01)
    task = asyncio.create_task(lease.run())
    try:
        yield lease
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_joins_renews_and_leaves(roster: MemoryRoster, companion: Companion) -> None:
    # 1. It joins at once, and keeps up what lives with it.
    async with running(roster, companion) as lease:
        await eventually(lambda: lease.held and len(companion.renewals) > 2)
        assert await roster.members() == (INFO,)
        assert set(companion.renewals) == {LONG_S}
    # 2. Cancelled, it gives everything back.
    assert await roster.members() == ()
    assert companion.left


async def test_a_lost_lease_is_taken_again(roster: MemoryRoster, companion: Companion) -> None:
    async with running(roster, companion):
        await eventually(lambda: bool(companion.renewals))
        await roster.leave(INFO.ref)
        watching = roster.watch()
        async with asyncio.timeout(10):
            while await anext(watching) != (INFO,):
                pass
        await watching.aclose()


async def test_an_outage_ends_nothing(roster: MemoryRoster, companion: Companion) -> None:
    async with running(roster, companion) as lease:
        await eventually(lambda: lease.held)
        companion.away = True
        await eventually(lambda: not lease.held)
        companion.away = False
        await eventually(lambda: lease.held)


async def test_leaving_while_everything_is_away_ends_in_time(roster: MemoryRoster, companion: Companion) -> None:
    async with asyncio.timeout(10), running(roster, companion) as lease:
        await eventually(lambda: lease.held)
        companion.away = True
    assert not companion.left


async def test_it_has_joined_once_the_lease_was_held_and_from_then_on(
    roster: MemoryRoster, companion: Companion
) -> None:
    companion.away = True
    async with running(roster, companion) as lease:
        joined = asyncio.create_task(lease.joined())
        await eventually(lambda: lease._state == "lost")
        assert not joined.done()
        companion.away = False
        async with asyncio.timeout(10):
            await joined
        companion.away = True
        await eventually(lambda: not lease.held)
        async with asyncio.timeout(10):
            await lease.joined()
        companion.away = False


async def test_a_superseded_worker_waits_for_the_lease(roster: MemoryRoster, companion: Companion) -> None:
    later = replace(INFO, ref=WorkerRef("w", "2"))
    async with running(roster, companion) as lease:
        await eventually(lambda: lease.held)
        # 1. A later life of the same name takes over. The worker goes on without a lease.
        assert await roster.join(later, LONG_S)
        await eventually(lambda: not lease.held)
        assert await roster.members() == (later,)
        # 2. The later life ends: the lease is free again.
        await roster.leave(later.ref)
        await eventually(lambda: lease.held)
        assert await roster.members() == (INFO,)
