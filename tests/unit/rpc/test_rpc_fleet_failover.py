"""What is asked of the fleet is answered by whichever router can, and a request's tries are told as one life."""

import pytest
from fixtures.eventually import eventually
from scripted_router import ScriptedRouter, gateway, lost

from headrace.core.errors import NotFound, RouterLost
from headrace.core.fleet import FleetStatus, Load, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.layout import KvLayout
from headrace.core.lifecycle import Phase, Transition
from headrace.core.route import Explanation
from headrace.rpc.fleet_failover import FailoverFleet
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


def life(request: str, outcome: str, begun: float, ttft_ms: float) -> Explanation:
    moves = (Transition(Phase.RECEIVED, Phase.ROUTED, begun), Transition(Phase.ROUTED, Phase.FAILED, begun + 2.0))
    return Explanation(request, "m", 3, (), moves, outcome, 5, ttft_ms)


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
        with pytest.raises(NotFound, match="'t'"):
            await fleet.explain("t")


def test_names_of_tries_fit_where_ids_do() -> None:
    assert names("r") == ("r", "r~2", "r~3", "r~4")
    longest = "x" * 128
    assert [len(name) for name in names(longest)] == [128] * MAX_TRIES
    assert len(set(names(longest))) == MAX_TRIES
    assert named("r", 1) == "r"
    assert joined("r", [life("r", "stop", 1.0, 2.0)]) == life("r", "stop", 1.0, 2.0)
