"""The account of the fleet's retries is exact: whatever happens between routers and what they share, none is made and
none is lost."""

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.commons import Deposit, Share
from headrace.core.errors import Unavailable
from headrace.roster.memory_commons import MemoryCommons
from headrace.router.standing import Standing

MOST = 30
NAMES = ("a", "b", "c")


class Pot(MemoryCommons):
    """discarded: what was more than may be saved up. `how` an exchange goes: "well", "away" (not at all), "deaf" (its
    answer is lost), "stuck" (it never comes to the pot), "held" (it never comes back from it)."""

    def __init__(self) -> None:
        super().__init__(most=MOST)
        self.how = "well"
        self.discarded = 0.0
        self.reached = asyncio.Event()

    @property
    def left(self) -> float:
        return self._left

    async def exchange(self, router: str, sequence: int, deposit: Deposit) -> Share:
        if self.how == "away":
            raise Unavailable("It is away.")
        if self.how == "stuck":
            await self._for_ever()
        share = await super().exchange(router, sequence, deposit)
        if self.how == "held":
            await self._for_ever()
        if self.how == "deaf":
            raise Unavailable("The answer was lost.")
        return share

    async def _for_ever(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()

    def _grant(self, deposit: Deposit) -> float:
        self.discarded += max(0.0, self._left + deposit.earned - MOST)
        return super()._grant(deposit)


class Account:
    """Routers that come and go around one pot. balance: what there is of retries, by what was earned and spent."""

    def __init__(self) -> None:
        self.pot = Pot()
        self.routers: dict[str, Standing] = {}
        self.lives = 0
        self._balance = float(MOST)

    @property
    def balance(self) -> float:
        return self._balance - self.pot.discarded

    def router(self, name: str) -> Standing:
        if name not in self.routers:
            self.lives += 1
            self.routers[name] = Standing(self.pot, f"{name}{self.lives}", refuse_s=30.0, every_s=1000.0)
        return self.routers[name]

    def earn(self, name: str, requests: int) -> None:
        for _ in range(requests):
            self.router(name).retries.earn()
        self._balance += requests * self.router(name).retries.per_request

    def spend(self, name: str, retries: int) -> None:
        self._balance -= sum(self.router(name).retries.spend() for _ in range(retries))

    async def exchange(self, name: str, how: str) -> None:
        self.pot.how = how
        await self.router(name).exchange()
        self.pot.how = "well"

    async def leave(self, name: str, how: str) -> None:
        """It stops while an exchange is under way, if `how` lets none end; stopping is done twice."""
        router = self.router(name)
        self.pot.how = how
        self.pot.reached.clear()
        router.start()
        if how in {"stuck", "held"}:
            await self.pot.reached.wait()
        self.pot.how = "well"
        await router.stop()
        await router.stop()
        del self.routers[name]

    def require_no_more_than_there_is(self) -> None:
        known = sum(one.retries.left - one.retries.lent for one in self.routers.values())
        assert self.pot.left + known <= self.balance + 1e-6
        assert all(one.retries.left <= one.retries.most for one in self.routers.values())


names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("earn"), names, st.integers(1, 60)),
    st.tuples(st.just("spend"), names, st.integers(1, 8)),
    st.tuples(st.just("exchange"), names, st.sampled_from(("well", "away", "deaf"))),
    st.tuples(st.just("leave"), names, st.sampled_from(("well", "stuck", "held"))),
)


async def _played(script: list[tuple[str, str, int | str]]) -> None:
    account = Account()
    for what, name, how in script:
        done = getattr(account, what)(name, how)
        if isinstance(done, Awaitable):
            await done
        account.require_no_more_than_there_is()
    for name in tuple(account.routers):
        await account.leave(name, "well")
    assert account.pot.left == pytest.approx(account.balance)


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_none_is_made_and_none_is_lost(script: list[tuple[str, str, int | str]]) -> None:
    asyncio.run(_played(script))


def test_routers_that_begin_and_leave_leave_what_there_was() -> None:
    asyncio.run(_played([("leave", name, how) for name in NAMES for how in ("well", "stuck", "held")]))


def test_a_router_that_spent_its_loan_while_alone_owes_it() -> None:
    alone: list[tuple[str, str, int | str]] = [("exchange", "a", "away"), ("spend", "a", 8), ("exchange", "a", "well")]
    asyncio.run(_played(alone))


def test_nobody_can_spend_more_than_the_fleet_has() -> None:
    async def play() -> int:
        account, spent = Account(), 0
        for name in NAMES:
            await account.exchange(name, "well")
        while now := sum(account.router(name).retries.spend() for name in NAMES):
            spent += now
        return spent

    assert asyncio.run(play()) == MOST
