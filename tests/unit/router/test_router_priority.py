"""The router's queue honours priorities: strict between them, first come first served within, bounded for all."""

import asyncio

import pytest
from toy_cluster import ask, cluster, collect, options

from headrace.core.errors import InvalidRequest, Overloaded
from headrace.core.fleet import WorkerRef
from headrace.core.route import Route
from headrace.router.admission import Admission
from headrace.router.choose import NoRoute
from headrace.router.policy import Disaggregation

ROUTE = Route(WorkerRef("w", "1"), None, 0, 1.0, (), ())
FULL = NoRoute("full", 0.5, served=True)


class Door:
    """Lets in as many as it is told, and keeps the order."""

    def __init__(self, limit: int = 10) -> None:
        self.free = 0
        self.order: list[str] = []
        self.refused: list[str] = []
        self.admission = Admission(limit=limit, grace_s=5.0, gauge=lambda waiting: None)

    async def enter(self, name: str, priority: int = 0, group: str = "g", ahead: bool = False) -> None:
        deadline = asyncio.get_running_loop().time() + 5
        try:
            await self.admission.admit(self._take, group, deadline, priority=priority, ahead=ahead)
            self.order.append(name)
        except Overloaded:
            self.refused.append(name)

    def _take(self) -> Route | NoRoute:
        if not self.free:
            return FULL
        self.free -= 1
        return ROUTE

    async def open(self, places: int) -> None:
        for _ in range(places):
            self.free += 1
            self.admission.wake()
            await settled()


async def settled() -> None:
    """Everything that can go on without a wake has done so."""
    for _ in range(6):
        await asyncio.sleep(0)


async def test_the_lowest_goes_first_and_equals_in_the_order_they_came() -> None:
    door = Door()
    tasks = []
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", -1)]:
        tasks.append(asyncio.create_task(door.enter(name, priority)))
        await settled()
    tasks.append(asyncio.create_task(door.enter("retried", 9, ahead=True)))
    await settled()
    await door.open(6)
    await asyncio.gather(*tasks)
    assert door.order == ["retried", "c", "e", "a", "d", "b"]


async def test_a_free_place_is_taken_past_worse_waiters_only() -> None:
    """1. `a` waits. 2. A place is free, nobody was woken: a better one takes it. 3. An equal one leaves it to `a`."""
    door = Door()
    tasks = [asyncio.create_task(door.enter("a", 0))]
    await settled()
    door.free = 1
    await door.enter("better", -1)
    assert door.order == ["better"]
    door.free = 1
    tasks.append(asyncio.create_task(door.enter("equal", 0)))
    await settled()
    assert door.order == ["better", "a"]
    await door.open(1)
    await asyncio.gather(*tasks)
    assert door.order == ["better", "a", "equal"]


async def test_a_full_queue_gives_its_last_place_to_a_better_one() -> None:
    """1. Two wait: full. 2. An equal is refused. 3. A better one takes the last place. 4. It stays bounded."""
    door = Door(limit=2)
    tasks = [asyncio.create_task(door.enter("a", 0)), asyncio.create_task(door.enter("b", 1))]
    await settled()
    await door.enter("equal", 1)
    assert door.refused == ["equal"]
    tasks.append(asyncio.create_task(door.enter("better", 0)))
    await settled()
    assert door.refused == ["equal", "b"]
    assert door.admission.waiting == 2
    # Two better ones at once, before the displaced have left: both last places go, never one place twice.
    tasks += [asyncio.create_task(door.enter("first", -2)), asyncio.create_task(door.enter("second", -1))]
    await settled()
    assert door.refused == ["equal", "b", "better", "a"]
    assert door.admission.waiting == 2
    await door.open(2)
    await asyncio.gather(*tasks)
    assert door.order == ["first", "second"]


async def test_who_was_served_before_is_never_displaced() -> None:
    door = Door(limit=1)
    retried = asyncio.create_task(door.enter("retried", 9, ahead=True))
    await settled()
    await door.enter("better", -9)
    assert door.refused == ["better"]
    await door.open(1)
    await retried


async def test_requests_wait_by_priority_and_workers_are_told_theirs() -> None:
    """One slot. 1. `first` holds it. 2. Three wait. 3. They are served by priority."""
    only = options(Disaggregation.NEVER)
    async with cluster(local=1, with_options=only, max_jobs=1) as toy:
        worker = toy.worker("l1")
        gate = worker.gate("token 0")
        tasks = [asyncio.create_task(collect(toy, ask("first")))]
        await worker.passed("token 0")
        for waiting, (name, priority) in enumerate([("late", 7), ("soon", -2), ("usual", 0)], 1):
            tasks.append(asyncio.create_task(collect(toy, ask(name, priority=priority))))
            await toy.status_when(lambda status, waiting=waiting: status.requests_waiting == waiting)
        gate.set()
        await asyncio.gather(*tasks)
        assert [job.key.request for job in worker.submits] == ["first", "soon", "usual", "late"]
        assert [job.priority for job in worker.submits] == [0, -2, 0, 7]
        await toy.quiet()


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 10**400])
def test_priorities_are_32_bit(priority: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(priority=priority)
    assert refused.value.param == "priority"
