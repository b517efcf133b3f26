"""Workers that do not fit: never attached, never given a request, listed with the reason, and told so."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest
from scripted_worker import MODEL, ScriptedWorker, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids

from headrace.core.errors import InvalidRequest, Unavailable
from headrace.core.fleet import Role, WorkerInfo
from headrace.core.jobs import Command, Hello, Report
from headrace.router.models import Models, ServedModel

MINE, OTHERS = b"minemineminemine", b"othersothersothe"


class Honest(ScriptedWorker):
    """One that looks at a router's Hello as workers do. away: how often it cannot be reached before it can."""

    def __init__(self, info: WorkerInfo, *, away: int = 0) -> None:
        super().__init__(info)
        self.away = away
        self.heard: list[Hello] = []

    async def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        if self.away:
            self.away -= 1
            raise Unavailable("Not yet.")
        hello = await anext(commands)
        assert isinstance(hello, Hello)
        self.heard.append(hello)
        await self._notify()
        if hello.weights != self.info.weights:
            raise InvalidRequest("Other weights.")
        reports = cast("AsyncGenerator[Report, None]", super().attach(_led_by(hello, commands)))
        async with aclosing(reports):
            async for report in reports:
                yield report


async def _led_by(first: Command, others: AsyncIterator[Command]) -> AsyncIterator[Command]:
    yield first
    async for command in others:
        yield command


def particular(toy: ToyCluster) -> None:
    """From now on the router takes workers of its own weights only."""
    served = next(iter(toy.router._models))
    toy.router._models._served[MODEL] = replace(served, weights=MINE)


async def test_a_worker_of_other_weights_is_listed_and_told_and_gets_nothing() -> None:
    async with cluster() as toy:
        particular(toy)
        stranger = Honest(worker_info("l2", Role.LOCAL, weights=OTHERS), away=2)
        await toy.join(stranger)
        # 1. It is refused and not among the workers. Alone it leaves the fleet unready, which says why.
        status = await toy.status_when(lambda status: bool(status.refused))
        assert not status.ready
        assert "l2@1 is refused: it and this router serve other models as toy" in status.reason
        (refused,) = status.refused
        assert refused.info.ref == stranger.info.ref
        assert "their weights are 6f7468657273 and 6d696e656d69" in refused.reason
        # 2. It hears the router's weights, once, though it could not be reached at first.
        await stranger.until(lambda: bool(stranger.heard))
        assert (stranger.heard[0].weights, stranger.away) == (MINE, 0)
        # 3. One that fits serves alone.
        friend = Honest(worker_info("l1", Role.LOCAL, weights=MINE))
        await toy.join(friend)
        await toy.attached(1)
        for number in range(4):
            assert len(ids(await collect(toy, ask(f"r{number}")))) == 6
        assert [worker.info.ref.worker for worker in (await toy.router.status()).workers] == ["l1"]
        assert len(friend.submits) == 4
        assert stranger.submits == []
        assert len(stranger.heard) == 1
        assert (await toy.router.status()).ready
        # 4. When it is gone it is not listed any more.
        await toy.roster.leave(stranger.info.ref)
        await toy.status_when(lambda status: not status.refused)


async def test_one_that_would_take_this_router_is_left_again() -> None:
    async with cluster() as toy:
        particular(toy)
        careless = ScriptedWorker(worker_info("l1", Role.LOCAL, weights=OTHERS))
        await toy.join(careless)
        await careless.until(lambda: careless.hellos == 1)
        await careless.until(lambda: careless._out is None)
        status = await toy.router.status()
        assert status.workers == ()
        assert len(status.refused) == 1


async def test_workers_of_other_routers_are_listed_and_let_be() -> None:
    async with cluster(local=1) as toy:
        particular(toy)
        foreign = ScriptedWorker(worker_info("f1", Role.LOCAL, model="foreign"))
        await toy.join(foreign)
        status = await toy.status_when(lambda status: bool(status.refused))
        assert status.refused[0].reason == "serves foreign, which this router does not"
        assert status.ready
        assert foreign.hellos == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": MINE}, ""),
        ({"weights": OTHERS}, "their weights are 6f7468657273 and 6d696e656d69"),
        ({"weights": b""}, "does not say of which weights its toy is"),
        ({"model": "other"}, "serves other, which this router does not"),
    ],
    ids=str,
)
def test_the_weights_of_a_served_name_are_the_routers_own(changes: dict[str, object], reason: str) -> None:
    models = Models([ServedModel(MODEL, None, 512, 0, weights=MINE)])  # type: ignore[arg-type]
    told = models.misfit(worker_info("l1", Role.LOCAL, **changes))
    assert (reason in told) if reason else told == ""


async def test_a_range_of_protocols_is_enough() -> None:
    async with cluster() as toy:
        newest = toy.router._hello(worker_info("l1", Role.LOCAL)).protocol
        await toy.join(ScriptedWorker(worker_info("l1", Role.LOCAL, protocol=newest + 4, oldest_protocol=newest)))
        await toy.attached(1)
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL, protocol=newest + 4, oldest_protocol=newest + 1)))
        (refused,) = (await toy.status_when(lambda status: bool(status.refused))).refused
        assert f"speaks protocols {newest + 1} to {newest + 4} and this router" in refused.reason


async def test_a_decode_job_names_the_page_size_of_its_peer() -> None:
    async with cluster(decode=1) as toy:
        layout = replace(worker_info("p1", Role.PREFILL).layout, block_tokens=48)
        wide = ScriptedWorker(worker_info("p1", Role.PREFILL, layout=layout))
        await toy.join(wide)
        await toy.attached(2)
        assert len(ids(await collect(toy, ask()))) == 6
        (asked,) = toy.worker("d1").submits
        assert (asked.peer, asked.peer_block_tokens) == (wide.info.ref, 48)
        await toy.quiet()
