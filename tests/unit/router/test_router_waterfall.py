"""Where a request's time goes: the parts, in their order and without a gap, and what is counted of them."""

import asyncio
from itertools import pairwise

import pytest
from scripted_worker import expected
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options

from headrace.core.errors import HeadraceError
from headrace.core.fleet import Role
from headrace.core.route import Explanation
from headrace.core.waterfall import Stage
from headrace.router.policy import Disaggregation

TOLERATED_S = 0.005
HANDED_OVER = [
    Stage.PREPARE,
    Stage.QUEUE,
    Stage.ROUTE,
    Stage.GRANT,
    Stage.PREFILL,
    Stage.COMMIT,
    Stage.FIRST_DECODE,
    Stage.DECODE,
]
LOCAL = [Stage.PREPARE, Stage.QUEUE, Stage.ROUTE, Stage.PREFILL, Stage.FIRST_DECODE, Stage.DECODE]


def stages(told: Explanation, attempt: int = 1) -> list[Stage]:
    return [part.stage for part in told.waterfall if part.attempt == attempt]


def adds_up(toy: ToyCluster, told: Explanation) -> bool:
    """Whether the parts are the whole: of the time to the first token, and of all of it."""
    assert all(part.seconds >= 0 for part in told.waterfall)
    total = sum(part.seconds for part in told.waterfall)
    first = 0.0
    for part in told.waterfall:
        if part.stage in (Stage.COMMIT, Stage.FIRST_DECODE):
            break
        first += part.seconds
    counted = toy.metrics.registry.get_sample_value("vllm:e2e_request_latency_seconds_sum")
    assert counted is not None
    return abs(first - told.actual_ttft_ms / 1000) < TOLERATED_S and abs(total - counted) < TOLERATED_S


def count(toy: ToyCluster, name: str) -> float:
    found = toy.metrics.registry.get_sample_value(f"{name}_count")
    assert found is not None
    return found


async def test_parts_of_a_handed_over_request_are_all_of_its_time() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        await collect(toy, ask())
        told = await toy.router.explain("r1")
        assert stages(told) == HANDED_OVER
        assert adds_up(toy, told)


async def test_parts_of_a_local_request() -> None:
    async with cluster(local=1, with_options=options(Disaggregation.NEVER)) as toy:
        await collect(toy, ask())
        told = await toy.router.explain("r1")
        assert (stages(told), told.notes) == (LOCAL, ())
        assert adds_up(toy, told)


@pytest.mark.parametrize("stage", [Stage.GRANT, Stage.PREFILL, Stage.COMMIT, Stage.FIRST_DECODE, Stage.DECODE])
async def test_who_is_slow_shows(stage: Stage) -> None:
    """A request is at a stage while the worker on whom it waits holds it there."""
    name, point = {
        Stage.GRANT: ("d1", "grant"),
        Stage.PREFILL: ("p1", "token 0"),
        Stage.COMMIT: ("d1", "commit"),
        Stage.FIRST_DECODE: ("d1", "token 1"),
        Stage.DECODE: ("d1", "token 2"),
    }[stage]
    async with cluster(prefill=1, decode=1) as toy:
        gate = toy.worker(name).gate(point)
        asking = asyncio.create_task(collect(toy, ask()))
        await toy.worker(name).passed(point)
        while True:
            told = await toy.router.explain("r1")
            if told.waterfall[-1].stage is stage:
                break
            await asyncio.sleep(0)
        gate.set()
        assert ids(await asking) == expected(3, 6)
        assert stages(await toy.router.explain("r1")) == HANDED_OVER


async def test_waiting_for_a_credit_is_the_queue() -> None:
    async with cluster(local=1, max_jobs=1, with_options=options(Disaggregation.NEVER)) as toy:
        gate = toy.worker("l1").gate("token 1")
        first = asyncio.create_task(collect(toy, ask()))
        await toy.worker("l1").passed("token 1")
        second = asyncio.create_task(collect(toy, ask("r2")))
        await toy.status_when(lambda status: status.requests_waiting == 1)
        told = await toy.router.explain("r2")
        assert [part.stage for part in told.waterfall] == [Stage.PREPARE, Stage.QUEUE]
        gate.set()
        await asyncio.gather(first, second)
        assert stages(await toy.router.explain("r2")) == LOCAL


async def test_each_attempt_has_its_parts_and_nothing_between_them_is_lost() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        toy.worker("p1").at["token 0"] = toy.worker("p1").die
        await collect(toy, ask())
        told = await toy.router.explain("r1")
        assert stages(told, 1) == [Stage.PREPARE, Stage.QUEUE, Stage.ROUTE, Stage.GRANT, Stage.PREFILL]
        assert stages(told, 2) == HANDED_OVER[1:]
        assert [part.attempt for part in told.waterfall] == sorted(part.attempt for part in told.waterfall)
        assert adds_up(toy, told)


async def test_a_caller_that_leaves_amid_a_transfer_drains_last() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        toy.worker("p1").gate("handover")
        toy.worker("d1").gate("commit")
        stream = toy.router.generate(ask())
        await anext(stream)
        await stream.aclose()
        told = await toy.router.explain("r1")
        assert stages(told)[-2:] == [Stage.COMMIT, Stage.DRAIN]
        # Nothing of it counts as an answer's time or as a commit.
        assert (count(toy, "vllm:request_decode_time_seconds"), count(toy, "headrace_commit_wait_seconds")) == (0, 0)
        await toy.quiet()


async def test_a_refused_request_ends_where_it_was() -> None:
    async with cluster() as toy:
        with pytest.raises(HeadraceError):
            await collect(toy, ask())
        told = await toy.router.explain("r1")
        assert stages(told) == [Stage.PREPARE, Stage.QUEUE]


async def test_both_ends_of_a_transfer_are_told() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        d = toy.worker("d1")
        handed = asyncio.Event()
        writing = d.gate("token 1")
        toy.worker("p1").at["handover"] = handed.set
        asking = asyncio.create_task(collect(toy, ask()))
        await handed.wait()
        while not any(note.role is Role.PREFILL for note in (await toy.router.explain("r1")).notes):
            await asyncio.sleep(0)
        writing.set()
        await asking
        told = await toy.router.explain("r1")
        assert {note.role for note in told.notes} == {Role.PREFILL, Role.DECODE}
        for note in told.notes:
            assert note.worker == toy.worker("p1" if note.role is Role.PREFILL else "d1").info.ref
            assert (note.attempt, note.payload_bytes, note.messages) == (1, 1 << 20, 4)
            assert (note.seconds, note.exposed_s, note.overlap_share) == (0.5, 0.125, 0.75)


async def test_times_and_waits_are_counted_once() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        await collect(toy, ask())
        names = ["queue", "prefill", "decode", "inference"]
        assert [count(toy, f"vllm:request_{name}_time_seconds") for name in names] == [1, 1, 1, 1]
        assert (count(toy, "headrace_grant_wait_seconds"), count(toy, "headrace_commit_wait_seconds")) == (1, 1)
        read = toy.metrics.registry.get_sample_value
        prefill, decode, both = (read(f"vllm:request_{name}_time_seconds_sum") for name in names[1:])
        assert prefill is not None
        assert decode is not None
        assert both == pytest.approx(prefill + decode)


async def test_moves_and_parts_agree() -> None:
    """Phases are what the router does, stages where its time goes: neither runs behind the other."""
    async with cluster(prefill=1, decode=1) as toy:
        await collect(toy, ask())
        told = await toy.router.explain("r1")
        times = [move.at for move in told.transitions]
        assert all(before <= after for before, after in pairwise(times))
        grant = sum(part.seconds for part in told.waterfall if part.stage is Stage.GRANT)
        assert times[1] - times[0] == pytest.approx(grant, abs=TOLERATED_S)
