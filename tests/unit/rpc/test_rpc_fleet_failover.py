"""What is asked of the fleet is answered by whichever router can, and a request's tries are told as one life."""

import asyncio
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from scripted_router import QUICK, ScriptedRouter, gateway, lost

from headrace.core.errors import NotFound, RouterLost
from headrace.core.fleet import FleetStatus, Load, RefusedWorker, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.layout import KvLayout
from headrace.core.lifecycle import Phase, Transition
from headrace.core.route import Explanation, Route
from headrace.core.waterfall import AttemptNote, Part, Stage
from headrace.rpc.codec.generation import MAX_ID_CHARS
from headrace.rpc.fleet_failover import FailoverFleet, merged
from headrace.rpc.tries import MAX_TRIES, joined, named, names


async def test_metrics_are_the_same_routers_as_long_as_it_is_well() -> None:
    one, two = ScriptedRouter("a:1"), ScriptedRouter("b:1")
    async with gateway(one, two) as routers:
        fleet = FailoverFleet(routers)
        assert {await fleet.metrics() for _ in range(4)} == {"a:1"}
        one.says.put_nowait(None)
        await eventually(lambda: len(routers.answering()) == 1)
        assert {await fleet.metrics() for _ in range(4)} == {"b:1"}


async def test_the_fleet_is_ready_if_one_router_says_so() -> None:
    waiting = FleetStatus(False, "no worker yet", (), 0, 0)
    one, two = ScriptedRouter("a:1", status_now=waiting), ScriptedRouter("b:1")
    async with gateway(one, two) as routers:
        fleet = FailoverFleet(routers)
        assert (await fleet.status()).ready
        two.status_now = waiting
        assert (await fleet.status()).reason == "no worker yet"
        two.status_now = lost("b:1")
        assert (await fleet.status()).reason == "no worker yet"


LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=4, block_tokens=16, dtype="float32")
INFO = WorkerInfo(WorkerRef("d1", "1"), Role.DECODE, "w:1", "m", b"m", LAYOUT, 512, 64, 8, "tcp", "w:2", 2, 1)


def state(worker: str, *, attached: bool, running: int = 0) -> WorkerState:
    return WorkerState(replace(INFO, ref=WorkerRef(worker, "1")), Load(running=running), attached)


def test_a_worker_is_as_a_router_sees_it_that_has_it_attached() -> None:
    here, there = state("d1", attached=True, running=2), state("d1", attached=True, running=3)
    away, gone = state("d1", attached=False, running=1), state("d1", attached=False)
    assert merged([(here,), (there,)]) == (here,)
    assert merged([(away,), (there,), (here,)]) == (there,)
    assert merged([(away,), (), (gone,)]) == (away,)
    p1, d1 = state("p1", attached=True), state("d1", attached=True)
    assert merged([(p1,), (d1,)]) == (d1, p1)
    assert merged([(), ()]) == ()


async def test_the_workers_are_those_of_all_routers_whoever_is_ready() -> None:
    here, away, other = state("d1", attached=True), state("d1", attached=False), state("p1", attached=True)
    one = ScriptedRouter("a:1", status_now=FleetStatus(True, "", (away, other), 1, 2))
    two = ScriptedRouter("b:1", status_now=FleetStatus(False, "no prefill worker", (here,), 3, 4))
    async with gateway(one, two) as routers:
        fleet = FailoverFleet(routers)
        assert await fleet.status() == FleetStatus(True, "", (here, other), 4, 6)
        one.gone = True
        assert await fleet.status() == FleetStatus(False, "no prefill worker", (here,), 3, 4)


async def test_who_is_refused_by_one_router_is_told_of_once() -> None:
    one = RefusedWorker(replace(INFO, ref=WorkerRef("d9", "1")), "speaks protocol 7")
    two = RefusedWorker(replace(INFO, ref=WorkerRef("d8", "1")), "has other weights")
    routers = [
        ScriptedRouter("a:1", status_now=FleetStatus(True, "", (), 1, 0, (one,))),
        ScriptedRouter("b:1", status_now=FleetStatus(True, "", (), 0, 2, (replace(one, reason="is odd"), two))),
    ]
    async with gateway(*routers) as asked:
        assert await FailoverFleet(asked).status() == FleetStatus(True, "", (), 1, 2, (two, one))


async def test_a_router_that_lost_a_call_is_still_asked_of_its_requests() -> None:
    """It rests from new requests, and knows those that it has served."""
    one = ScriptedRouter("a:1", known={"r": life("r", "stop", 100.0, 12.0)})
    two = ScriptedRouter("b:1")
    async with gateway(one, two, pace=replace(QUICK, rest_s=60.0)) as routers:
        for door in routers.answering():
            routers.lost(door)
        assert (await FailoverFleet(routers).explain("r")).outcome == "stop"
        assert (await FailoverFleet(routers).status()).ready
        with pytest.raises(RouterLost):
            await routers.turn(0.0)


async def test_a_router_that_stands_still_is_waited_for_only_while_none_is_ready() -> None:
    never, soon = asyncio.Event(), asyncio.Event()
    ready, waiting = FleetStatus(True, "", (), 0, 0), FleetStatus(False, "no worker yet", (), 0, 0)
    one = ScriptedRouter("a:1", status_now=ready, stands=never)
    two = ScriptedRouter("b:1", status_now=waiting)
    three = ScriptedRouter("c:1", status_now=ready, stands=soon)
    async with gateway(one, two, three) as routers, asyncio.timeout(10):
        asking = asyncio.create_task(FailoverFleet(routers, late_s=0.001).status())
        await eventually(lambda: soon in three.stood)
        assert not asking.done()
        soon.set()
        assert (await asking).ready
        assert len(routers.answering()) == 3


async def test_a_worker_drains_by_any_router_that_has_it() -> None:
    one, two = ScriptedRouter("a:1"), ScriptedRouter("b:1", attached={"d1": WorkerState(INFO, Load(), attached=True)})
    async with gateway(one, two) as routers:
        fleet = FailoverFleet(routers)
        assert (await fleet.drain("d1", 3.0)).draining
        with pytest.raises(NotFound, match="d2"):
            await fleet.drain("d2")
        two.gone = True
        with pytest.raises(NotFound, match="d1"):
            await fleet.drain("d1")
        one.gone = True
        with pytest.raises(RouterLost):
            await fleet.drain("d1")


def life(
    request: str,
    outcome: str,
    begun: float,
    ttft_ms: float,
    *,
    parts: tuple[tuple[Stage, int, float], ...] = (),
    notes: tuple[int, ...] = (),
    routes: int = 0,
) -> Explanation:
    """parts: stage, attempt, seconds. notes: the attempt of each."""
    moves = (Transition(Phase.RECEIVED, Phase.ROUTED, begun), Transition(Phase.ROUTED, Phase.FAILED, begun + 2.0))
    route = Route(INFO.ref, None, 0, 1.0, (), (request,))
    seen = tuple(AttemptNote(attempt, Role.DECODE, INFO.ref, 64, 2, 0.5, 0.1, 0.8) for attempt in notes)
    waterfall = tuple(Part(*part) for part in parts)
    return Explanation(request, "m", 3, (route,) * routes, moves, outcome, 5, ttft_ms, seen, waterfall)


async def test_explaining_joins_the_tries_that_are_known() -> None:
    one = ScriptedRouter("a:1", known={"r": life("r", "cancelled", 100.0, 12.0)})
    two = ScriptedRouter("b:1", known={"r~2": life("r~2", "stop", 5.0, 3.0), "s~3": life("s~3", "stop", 9.0, 4.0)})
    async with gateway(one, two) as routers:
        fleet = FailoverFleet(routers)
        told = await fleet.explain("r")
        assert (told.request, told.outcome, told.actual_ttft_ms) == ("r", "stop", 12.0)
        assert [move.at for move in told.transitions] == [100.0, 102.0, 102.0, 104.0]
        # Of the router that is lost nothing is known any more.
        one.gone = True
        assert (await fleet.explain("r")).outcome == "stop"
        assert (await fleet.explain("s")).request == "s"
        # It may have known of a request that nobody else knows, until it is known to be away.
        with pytest.raises(RouterLost, match="a:1 may know request 't'"):
            await fleet.explain("t")
        one.says.put_nowait(None)
        await eventually(lambda: len(routers.answering()) == 1)
        with pytest.raises(NotFound, match="'t'"):
            await fleet.explain("t")


async def test_explaining_counts_attempts_on_over_the_tries() -> None:
    """1. Two attempts at the first router, then a wait for a third. 2. The second router answers in its second."""
    first = ((Stage.QUEUE, 1, 1.0), (Stage.PREFILL, 1, 2.0), (Stage.PREFILL, 2, 4.0), (Stage.QUEUE, 3, 8.0))
    then = ((Stage.PREPARE, 1, 0.5), (Stage.PREFILL, 1, 0.5), (Stage.PREFILL, 2, 1.0), (Stage.DECODE, 2, 3.0))
    one = ScriptedRouter("a:1", known={"r": life("r", "cancelled", 100.0, 0.0, parts=first, notes=(1, 2), routes=2)})
    two = ScriptedRouter("b:1", known={"r~2": life("r~2", "stop", 5.0, 2000.0, parts=then, notes=(2, 2), routes=2)})
    async with gateway(one, two) as routers:
        told = await FailoverFleet(routers).explain("r")
    assert [(part.stage, part.seconds) for part in told.waterfall] == [(part[0], part[2]) for part in (*first, *then)]
    # An attempt is a route: the third was still waited for when its router was lost.
    assert [part.attempt for part in told.waterfall] == [1, 1, 2, 3, 3, 3, 4, 4]
    assert [note.attempt for note in told.notes] == [1, 2, 4, 4]
    assert [route.reasons for route in told.routes] == [("r",), ("r",), ("r~2",), ("r~2",)]
    # Its time to first token is all of its parts before that.
    assert told.actual_ttft_ms == 1000 * (1.0 + 2.0 + 4.0 + 8.0 + 2.0)


def test_a_first_token_of_an_earlier_try_is_the_first() -> None:
    parts = ((Stage.PREFILL, 1, 0.012), (Stage.DECODE, 1, 3.0))
    heard = life("r", "cancelled", 1.0, 12.0, parts=parts, routes=1)
    assert joined("r", [heard, life("r~2", "stop", 5.0, 7.0, parts=parts, routes=1)]).actual_ttft_ms == 12.0
    assert joined("r", [life("r", "cancelled", 1.0, 0.0, parts=parts)]).actual_ttft_ms == 0.0


def test_names_of_tries_fit_where_ids_do() -> None:
    assert names("r") == ("r", "r~2", "r~3", "r~4")
    longest = "x" * 128
    assert [len(name) for name in names(longest)] == [128] * MAX_TRIES
    assert len(set(names(longest))) == MAX_TRIES
    assert named("r", 1) == "r"
    parts = ((Stage.PREFILL, 1, 1.0), (Stage.DECODE, 2, 1.0))
    whole = life("r", "stop", 1.0, 2.0, parts=parts, notes=(1, 2), routes=2)
    assert joined("r", [whole]) == whole


def test_ids_that_differ_at_their_end_only_have_tries_of_their_own() -> None:
    ids = [f"{'x' * (length - len(end))}{end}" for length in range(120, 129) for end in ("", "-1", "-2", "~2", "~3")]
    ids = list(dict.fromkeys(ids))
    tries = [named(id, number) for id in ids for number in range(2, MAX_TRIES + 1)]
    assert len(set(tries)) == len(tries)
    assert not {name for name in tries if len(name) > MAX_ID_CHARS or not all("!" <= char <= "~" for char in name)}
    # What need not be cut is not.
    assert named("x" * 126, 2) == "x" * 126 + "~2"


async def test_long_ids_are_explained_by_their_own_tries() -> None:
    ids = [f"{'x' * 126}{end}" for end in ("", "-1", "-2")]
    known = {named(id, 2): life(named(id, 2), id, 1.0, 2.0) for id in ids}
    async with gateway(ScriptedRouter("a:1", known=known)) as routers:
        fleet = FailoverFleet(routers)
        assert [(await fleet.explain(id)).outcome for id in ids] == ids
        assert [(await fleet.explain(id)).request for id in ids] == ids
