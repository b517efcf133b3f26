"""What routers of a fleet have in common: retries and refused prompts, with and without a way to each other."""

import asyncio

import pytest
from scripted_worker import DEADLINE_S, expected
from toy_cluster import ask, cluster, collect, ids, options

from headrace.core.commons import Deposit, Share
from headrace.core.errors import Unavailable, WorkerLost
from headrace.roster.memory_commons import MemoryCommons
from headrace.router.standing import Standing

POISON = bytes(range(16))


class Faraway:
    """Commons that can be out of reach: before an exchange (`away`), or once it has taken place (`deaf`)."""

    def __init__(self) -> None:
        self.commons = MemoryCommons(most=50)
        self.away = False
        self.deaf = False

    async def exchange(self, router: str, sequence: int, deposit: Deposit) -> Share:
        if self.away:
            raise Unavailable("It is away.")
        share = await self.commons.exchange(router, sequence, deposit)
        if self.deaf:
            raise Unavailable("The answer was lost.")
        return share


def standing(commons: Faraway, name: str) -> Standing:
    return Standing(commons, name, refuse_s=30.0)


async def test_a_budget_in_common() -> None:
    far = Faraway()
    one, two = standing(far, "one"), standing(far, "two")
    # 1. Each begins with a few in hand, which are the fleet's too, and takes more.
    assert (one.retries.left, two.retries.left) == (5, 5)
    await one.exchange()
    await two.exchange()
    assert (one.retries.left, two.retries.left) == (20, 20)
    # 2. One has a bad time, until the fleet has no more to give: 50 in all, of which the other has 20.
    spent = 0
    while one.retries.spend():
        spent += 1
        await one.exchange()
    assert spent == 50 - 20
    # 3. What the other earns is for both.
    for _ in range(11):
        two.retries.earn()
    await two.exchange()
    await one.exchange()
    assert one.retries.spend()
    assert one.retries.spend()
    assert not one.retries.spend()


async def test_out_of_reach_a_router_keeps_what_it_earns() -> None:
    far = Faraway()
    far.away = True
    one = standing(far, "one")
    await one.exchange()
    for _ in range(10):
        one.retries.earn()
    await one.exchange()
    assert (one.retries.left, one.retries.earned) == (7, 0)
    far.away = False
    await one.exchange()
    await one.exchange()
    assert one.retries.left == 20


async def test_an_answer_that_was_lost_costs_nothing() -> None:
    far = Faraway()
    one, two = standing(far, "one"), standing(far, "two")
    one.deadly.record(POISON)
    far.deaf = True
    await one.exchange()
    await one.exchange()
    far.deaf = False
    await one.exchange()
    assert one.retries.left == 20
    assert (await far.commons.exchange("all", 1, Deposit(wanted=100))).retries == 50 - 20
    await two.exchange()
    with pytest.raises(WorkerLost, match="refused"):
        two.deadly.check(POISON)


async def test_a_router_that_leaves_gives_back_what_it_has() -> None:
    far = Faraway()
    one = standing(far, "one")
    one.start()
    await one.exchange()
    await one.stop()
    assert (await far.commons.exchange("all", 1, Deposit(wanted=100))).retries == 50


async def test_no_router_of_the_fleet_takes_a_prompt_that_killed_two_workers_elsewhere() -> None:
    commons = MemoryCommons()
    here = cluster(local=3, commons=commons, with_options=options(name="here"))
    there = cluster(local=1, commons=commons, with_options=options(name="there"))
    async with here as one, there as two:
        for name in ("l1", "l2"):
            worker = one.worker(name)
            worker.at["token 2"] = worker.die
        with pytest.raises(WorkerLost, match="2 workers"):
            await collect(one, ask(prompt=8))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await collect(two, ask("again", prompt=8, max_tokens=2))
                except WorkerLost as error:
                    assert "refused" in error.message
                    break
        assert ids(await collect(two, ask("other", prompt=9, max_tokens=2))) == expected(3, 2)
