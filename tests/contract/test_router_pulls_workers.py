"""The router has a real worker fetch a prefix from another: fake engines whose pages prove themselves, over gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from test_router_workers import Cluster, a_request, cluster, tokens
from worker_harness import Gate

from headrace.core.generation import Chunk
from headrace.core.route import Explanation
from headrace.core.waterfall import Stage
from headrace.router.policy import Disaggregation

PATIENT_S = 60.0
PROMPT = tuple(3 + (11 * i + i * i) % 900 for i in range(300))
LONG = tuple(3 + (13 * i + i * i) % 900 for i in range(450))
BLOCKS = 18
FLEETS = {Disaggregation.NEVER: ("l1", "l2"), Disaggregation.ALWAYS: ("p1", "p2", "d1")}
BOTH_WAYS = pytest.mark.parametrize("mode", list(FLEETS))


def slowly() -> None:
    """A batch takes as long as a large model's."""
    time.sleep(0.3)


async def ask(stage: Cluster, name: str, prompt: tuple[int, ...]) -> list[Chunk]:
    request = replace(a_request(name, prompt=prompt, max_tokens=5), timeout_s=PATIENT_S)
    return [chunk async for chunk in stage.router.generate(request)]


async def alone() -> list[int]:
    async with cluster("l1") as stage:
        return tokens(await ask(stage, "r", PROMPT))


@asynccontextmanager
async def amid(
    mode: Disaggregation, *, warm: bool = True, stops: bool = False
) -> AsyncIterator[tuple[Cluster, Gate, asyncio.Task[list[Chunk]]]]:
    """The first worker is in the midst of a long prompt, and stands; PROMPT was asked, and the second one, slow, is to
    fetch it. In the end nothing is left. warm: the first one has it, as the index says. stops: it is gone then."""
    first, second = FLEETS[mode][:2]
    gate, hits = Gate(), dict[str, int]()
    async with cluster(*FLEETS[mode], over="grpc", mode=mode, gates={first: gate, second: slowly}, hits=hits) as stage:
        if warm:
            await ask(stage, "before", PROMPT)
        gate.shut_after(1)
        long = asyncio.create_task(ask(stage, "long", LONG))
        await gate.reached()
        await ask(stage, "measured", LONG[40:60])
        hits[first] = BLOCKS
        asking = asyncio.create_task(ask(stage, "r", PROMPT))

        async def fetching() -> bool:
            told = stage.router._conductor.explanation("r")
            return told is not None and told.waterfall[-1].stage is Stage.PULL

        await eventually(fetching)
        try:
            yield stage, gate, asking
        finally:
            gate.open()
            await asyncio.gather(long, asking, return_exceptions=True)
        assert len(tokens(await long)) == 5
        await stage.quiet(*([first] if stops else []))


async def explained(stage: Cluster) -> Explanation:
    told = await stage.router.explain("r")
    assert len(told.routes) == 1
    return told


@BOTH_WAYS
async def test_a_prefix_is_fetched_and_the_answer_is_the_same(mode: Disaggregation) -> None:
    async with amid(mode) as (stage, gate, asking):
        gate.open()
        assert tokens(await asking) == await alone()
        told = await explained(stage)
        first, second = FLEETS[mode][:2]
        route = told.routes[0]
        assert route.pull is not None
        assert (route.reader.worker, route.pull.holder.worker) == (second, first)
        assert told.actual_cached_tokens == route.pull.tokens == BLOCKS * 16
        assert {note.worker.worker for note in told.notes} >= {first, second}


@BOTH_WAYS
async def test_what_the_holder_never_had_is_computed(mode: Disaggregation) -> None:
    async with amid(mode, warm=False) as (stage, gate, asking):
        gate.open()
        assert tokens(await asking) == await alone()
        told = await explained(stage)
        assert told.routes[0].pull is not None
        assert told.actual_cached_tokens == 0


@BOTH_WAYS
async def test_a_holder_that_stops_amid_a_pull(mode: Disaggregation) -> None:
    async with amid(mode, stops=True) as (stage, gate, asking):
        first = FLEETS[mode][0]
        stopping = asyncio.create_task(stage.workers[first].worker.stop(0.0))
        gate.open()
        assert tokens(await asking) == await alone()
        await explained(stage)
        await stopping


@BOTH_WAYS
async def test_a_caller_that_leaves_amid_a_pull(mode: Disaggregation) -> None:
    async with amid(mode) as (_, gate, asking):
        asking.cancel()
        await asyncio.wait({asking})
        gate.open()
