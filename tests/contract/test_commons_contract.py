"""The contract of Commons, over memory and a real Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fixtures.eventually import eventually

from headrace.core.commons import Commons, Deposit
from headrace.roster.memory_commons import MemoryCommons
from headrace.roster.redis_commons import RedisCommons
from headrace.store.connection import Store

NOTHING = Deposit()
POISON = bytes(range(16))
OTHER = b"other prompt 16b"


@pytest.fixture(params=["memory", "redis"])
async def commons(request: pytest.FixtureRequest) -> AsyncIterator[Commons]:
    if request.param == "memory":
        yield MemoryCommons(most=30)
        return
    store = Store(request.getfixturevalue("redis_url"))
    try:
        yield RedisCommons(store, fleet=request.getfixturevalue("fleet"), most=30)
    finally:
        await store.close()


async def test_the_life_of_the_retries(commons: Commons) -> None:
    # 1. A fleet begins with all that it may save up.
    assert (await commons.exchange("a", 1, Deposit(wanted=20))).retries == 20
    # 2. The next router gets what is left.
    assert (await commons.exchange("b", 1, Deposit(wanted=20))).retries == 10
    # 3. Nothing is left.
    assert (await commons.exchange("a", 2, Deposit(wanted=1))).retries == 0
    # 4. What one earned another may take, in whole ones; fractions add up.
    assert (await commons.exchange("a", 3, Deposit(earned=1.6))).retries == 0
    assert (await commons.exchange("b", 2, Deposit(wanted=20))).retries == 1
    assert (await commons.exchange("b", 3, Deposit(earned=0.4, wanted=20))).retries == 1
    # 5. No more is saved up than `most`.
    await commons.exchange("a", 4, Deposit(earned=1000))
    assert (await commons.exchange("b", 4, Deposit(wanted=1000))).retries == 30


async def test_an_exchange_that_is_repeated_is_answered_as_before(commons: Commons) -> None:
    deposit = Deposit(wanted=7, earned=5)
    assert (await commons.exchange("a", 1, deposit)).retries == 7
    assert (await commons.exchange("a", 1, deposit)).retries == 7
    assert (await commons.exchange("b", 1, Deposit(wanted=1000))).retries == 23


async def test_an_exchange_that_comes_late_leaves_nothing(commons: Commons) -> None:
    """Its caller gave it up, asked again, and went on; then it arrives."""
    assert (await commons.exchange("a", 1, Deposit(wanted=7))).retries == 7
    assert (await commons.exchange("a", 2, Deposit(wanted=3))).retries == 3
    await commons.exchange("a", 1, Deposit(wanted=7))
    assert (await commons.exchange("b", 1, Deposit(wanted=1000))).retries == 20


async def test_a_debt_is_paid_before_anybody_gets_more(commons: Commons) -> None:
    assert (await commons.exchange("a", 1, Deposit(wanted=30))).retries == 30
    assert (await commons.exchange("b", 1, Deposit(earned=-2.5, wanted=5))).retries == 0
    assert (await commons.exchange("a", 2, Deposit(earned=3.0, wanted=5))).retries == 0
    assert (await commons.exchange("a", 3, Deposit(earned=0.5, wanted=5))).retries == 1


async def test_what_one_router_saw_all_refuse(commons: Commons) -> None:
    # 1. Nobody has seen anything.
    assert (await commons.exchange("a", 1, NOTHING)).refused == ()
    # 2. One has.
    (mine,) = (await commons.exchange("a", 2, Deposit(deaths=((POISON, 60.0),)))).refused
    ((fingerprint, left),) = (await commons.exchange("b", 1, NOTHING)).refused
    assert mine[0] == fingerprint == POISON
    assert 50 < left <= 60
    # 3. The longer refusal counts, whoever comes later.
    await commons.exchange("b", 2, Deposit(deaths=((POISON, 5.0), (OTHER, 70.0))))
    refused = dict((await commons.exchange("a", 3, NOTHING)).refused)
    assert refused.keys() == {POISON, OTHER}
    assert 50 < refused[POISON] <= 60 < refused[OTHER]


async def test_a_refusal_ends(commons: Commons) -> None:
    await commons.exchange("a", 1, Deposit(deaths=((POISON, 0.1),)))
    sequence = iter(range(1, 10_000))

    async def over() -> bool:
        return (await commons.exchange("b", next(sequence), NOTHING)).refused == ()

    await eventually(over)


async def test_routers_at_once_get_no_more_than_there_is(commons: Commons) -> None:
    exchanges = (commons.exchange(str(router), 1, Deposit(wanted=4)) for router in range(12))
    shares = await asyncio.gather(*exchanges)
    assert sum(share.retries for share in shares) == 30
