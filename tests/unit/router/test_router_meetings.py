"""Workers are introduced to each other before requests need them to know each other."""

import asyncio
from dataclasses import replace

import pytest
from scripted_worker import MODEL, ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options

from headrace.core.fleet import Load, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.jobs import Meet, Met, Welcome
from headrace.core.route import Route
from headrace.router.attachments import Patience
from headrace.router.choose import choose
from headrace.router.meetings import Meetings
from headrace.router.policy import Policy
from headrace.router.view import Ask, WorkerView

P1, P2 = (worker_info(name, Role.PREFILL) for name in ("p1", "p2"))
D1, D2 = (worker_info(name, Role.DECODE) for name in ("d1", "d2"))
L1 = worker_info("l1", Role.LOCAL)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def meet(decode: WorkerInfo) -> Meet:
    return Meet(decode.ref, decode.link, decode.data_address)


def test_every_prefill_worker_meets_every_decode_worker_of_its_kind_once() -> None:
    meetings = Meetings(2.0, Clock())
    assert meetings.begin(P1, [P1]) == []
    assert meetings.begin(D1, [P1, D1]) == [(P1.ref, meet(D1))]
    assert meetings.begin(P2, [P1, P2, D1]) == [(P2.ref, meet(D1))]
    assert meetings.begin(D2, [P1, P2, D1, D2, L1]) == [(P1.ref, meet(D2)), (P2.ref, meet(D2))]
    assert meetings.begin(L1, [P1, P2, D1, D2, L1]) == []


@pytest.mark.parametrize("change", [{"link": "tcp"}, {"model_digest": b"e" * 16}])
def test_those_that_exchange_no_pages_do_not_meet(change: dict[str, object]) -> None:
    assert Meetings(2.0, Clock()).begin(replace(D1, **change), [P1]) == []


def test_a_pair_is_new_until_it_has_met_or_two_seconds_passed() -> None:
    clock = Clock()
    meetings = Meetings(2.0, clock)
    meetings.begin(P1, [D1, D2])
    assert meetings.new_to(P1.ref) == {D1.ref, D2.ref}
    assert meetings.new_to(P2.ref) == frozenset()
    meetings.over(P1.ref, Met(D1.ref, "", 3.0))
    assert meetings.new_to(P1.ref) == {D2.ref}
    # One that failed to meet is taken last for its time, and no longer: transfers will tell.
    meetings.over(P1.ref, Met(D2.ref, "nobody is there", 3.0))
    clock.now += 1.9
    assert meetings.new_to(P1.ref) == {D2.ref}
    clock.now += 0.1
    assert meetings.new_to(P1.ref) == frozenset()
    meetings.over(P1.ref, Met(D2.ref, "", 3.0))


@pytest.mark.parametrize("leaver", [P1, D1])
def test_who_left_is_met_again_when_it_comes_back(leaver: WorkerInfo) -> None:
    meetings = Meetings(2.0, Clock())
    meetings.begin(P1, [D1])
    meetings.left(leaver.ref)
    assert meetings.new_to(P1.ref) == frozenset()
    other = D1 if leaver is P1 else P1
    assert meetings.begin(leaver, [other]) == [(P1.ref, meet(D1))]
    assert meetings.new_to(P1.ref) == {D1.ref}


def route(*fleet: WorkerView, avoided: frozenset[WorkerRef] = frozenset()) -> tuple[str, str]:
    found = choose(Ask(MODEL, 40, 60, avoided=avoided), fleet, {}, Policy())
    assert isinstance(found, Route)
    assert found.prefill is not None
    return found.prefill.worker, found.decode.worker


def view(info: WorkerInfo, *, running: int = 0, new_to: frozenset[WorkerRef] = frozenset()) -> WorkerView:
    return WorkerView(WorkerState(info, Load(credits=4, running=running), attached=True), new_to=new_to)


def test_a_pair_that_has_not_met_is_chosen_last() -> None:
    new = frozenset({D1.ref})
    # The decode worker that just came has nothing to do, and still it is not chosen cold.
    assert route(view(P1, new_to=new), view(D1), view(D2, running=50)) == ("p1", "d2")
    # A busier prefill worker that knows it is.
    assert route(view(P1, new_to=new), view(P2, running=50), view(D1)) == ("p2", "d1")
    # Where there is nothing else it is chosen all the same, before one that the request failed on.
    assert route(view(P1, new_to=new), view(D1)) == ("p1", "d1")
    assert route(view(P1, new_to=new), view(D1), view(D2), avoided=frozenset({D2.ref})) == ("p1", "d1")


async def decoders(toy: ToyCluster, names: list[str]) -> set[str]:
    """Where requests that run at once decode."""
    await asyncio.gather(*(collect(toy, ask(name)) for name in names))
    return {route.decode.worker for name in names for route in (await toy.router.explain(name)).routes}


async def test_a_worker_that_has_just_started_is_not_chosen_cold() -> None:
    async with cluster(
        prefill=1, decode=1, with_options=options(patience=Patience(2.0, 0.01, 0.05, meet_s=60.0))
    ) as toy:
        p1 = toy.worker("p1")
        await toy.until(lambda: bool(p1.meets) and not toy.router._attachments.new_to(p1.info.ref))
        meeting = p1.gate("meet")
        await toy.join(ScriptedWorker(D2))
        await p1.until(lambda: p1.meets == [WorkerRef("d1", "1"), D2.ref])
        assert await decoders(toy, [f"a{number}" for number in range(6)]) == {"d1"}
        meeting.set()
        await toy.until(lambda: not toy.router._attachments.new_to(p1.info.ref))
        assert await decoders(toy, [f"b{number}" for number in range(6)]) == {"d1", "d2"}


async def test_workers_meet_again_after_a_stream_broke() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p1, d1 = toy.worker("p1"), toy.worker("d1")
        await p1.until(lambda: len(p1.meets) == 1)
        for worker in (d1, p1):
            worker.cut()
            await p1.until(lambda: len(p1.meets) == (2 if worker is d1 else 3))  # noqa: B023
        assert set(p1.meets) == {d1.info.ref}
        assert d1.meets == []
        assert ids(await collect(toy, ask())) == expected(3, 6)


async def test_workers_meet_again_where_a_link_is_that_was_opened_again() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        p1, p2, d1 = (toy.worker(name) for name in ("p1", "p2", "d1"))
        for one in (p1, p2):
            await one.until(lambda: len(one.meets) == 1)  # noqa: B023
        d1.info = replace(d1.info, data_address="elsewhere:2")
        for _ in range(2):
            d1.send(Welcome(d1.info, d1.load))
        d1.send(Welcome(D2, d1.load))  # not who it is
        for one in (p1, p2):
            await one.until(lambda: len(one.meets) == 2)  # noqa: B023
        assert [command.address for command in p1.commands if isinstance(command, Meet)][1] == "elsewhere:2"
        # Who comes later hears of that place alone, and nobody twice.
        p3 = ScriptedWorker(worker_info("p3", Role.PREFILL))
        await toy.join(p3)
        await p3.until(lambda: len(p3.meets) == 1)
        assert [command.address for command in p3.commands if isinstance(command, Meet)] == ["elsewhere:2"]
        assert len(p1.meets) == len(p2.meets) == 2
        assert ids(await collect(toy, ask())) == expected(3, 6)


@pytest.mark.parametrize(("dead", "left", "aborts"), [("d1", "p1", 2), ("p1", "d1", 1)])
async def test_a_worker_hears_that_its_peer_is_dead(dead: str, left: str, aborts: int) -> None:
    """Once that is certain: later than the end of the job, or with it where the job waited for a word on its commit."""
    async with cluster(prefill=1, decode=1, with_options=options(comeback_s=5.0)) as toy:
        loser, survivor = toy.worker(dead), toy.worker(left)
        toy.worker("p1").gate("handover")
        toy.worker("d1").gate("activate")
        running = asyncio.create_task(collect(toy, ask()))
        await toy.worker("d1").passed("activate")
        loser.die()
        await survivor.until(lambda: bool(survivor.told_of_deaths))
        first = survivor.submits[0].key
        assert survivor.told_of_deaths == [first]
        assert survivor.aborts == [first] * aborts
        running.cancel()
        await asyncio.wait({running})


async def test_a_worker_whose_peer_came_back_is_told_of_no_death() -> None:
    async with cluster(
        prefill=1, decode=1, with_options=options(patience=Patience(2.0, 0.01, 0.05, back_s=60.0))
    ) as toy:
        p1, d1 = toy.worker("p1"), toy.worker("d1")
        gate = d1.gate("activate")
        running = asyncio.create_task(collect(toy, ask()))
        await d1.passed("activate")
        d1.cut()
        gate.set()
        assert ids(await running) == expected(3, 6)
        assert p1.told_of_deaths == d1.told_of_deaths == []
