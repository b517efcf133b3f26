"""The router moves running requests between real workers: fake engines with real page accounting, over gRPC."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from fixtures.eventually import eventually
from test_router_workers import PROMPT, Cluster, _reachable, a_request, cluster
from worker_harness import Gate, fake_engine, served

from headrace.core.fleet import Role
from headrace.router.policy import Disaggregation

PATIENT_S = 60.0


async def ask(stage: Cluster, number: int, max_tokens: int, heard: list[int] | None = None) -> list[int]:
    """One of several requests that share no page. heard: its tokens so far."""
    request = replace(a_request(f"r{number}", prompt=PROMPT[number:], max_tokens=max_tokens), timeout_s=PATIENT_S)
    told = [] if heard is None else heard
    async for chunk in stage.router.generate(request):
        told += chunk.token_ids
    return told


async def alone(count: int, max_tokens: int) -> list[list[int]]:
    async with cluster("l1", mode=Disaggregation.NEVER) as stage:
        return [await ask(stage, number, max_tokens) for number in range(count)]


async def test_a_worker_that_is_told_to_drain_is_empty_soon_and_nothing_is_computed_again() -> None:
    expected = await alone(4, 120)
    gates = {name: Gate() for name in ("d1", "d2")}
    async with cluster("p1", "d1", "d2", over="grpc", gates=gates) as stage:
        heard: list[list[int]] = [[] for _ in range(4)]
        asking = [asyncio.create_task(ask(stage, number, 120, heard[number])) for number in range(4)]
        await eventually(lambda: all(len(one) > 2 for one in heard), PATIENT_S)
        for gate in gates.values():
            gate.shut()
        await stage.router.drain("d1", 30.0)
        leaver = stage.workers["d1"].worker
        async with asyncio.timeout(PATIENT_S):
            assert await asyncio.shield(leaver.leaving) == 30.0
            leaving = asyncio.create_task(leaver.retire(30.0))
            for gate in gates.values():
                gate.open()
            await leaving
        assert [await one for one in asking] == expected
        told = [await stage.router.explain(f"r{number}") for number in range(4)]
        moved = [one for one in told if len(one.routes) == 2]
        assert moved
        assert all(one.routes[1].prefill == one.routes[0].decode for one in moved)
        reads = stage.workers["p1"].metrics.registry.get_sample_value("vllm:prompt_tokens_total")
        assert reads == sum(len(PROMPT[number:]) for number in range(4))
        await stage.quiet("d1")


async def test_who_lost_its_pages_for_long_goes_on_where_there_is_room() -> None:
    """`l1` stands still with more answers than it has pages for; one with room comes."""
    expected = await alone(8, 150)
    gate = Gate()
    async with (
        cluster("l1", over="grpc", mode=Disaggregation.NEVER, gates={"l1": gate}) as stage,
        AsyncExitStack() as stack,
    ):
        gate.shut_after(110)
        asking = [asyncio.create_task(ask(stage, number, 150)) for number in range(8)]
        await gate.reached()
        second = await stack.enter_async_context(served(fake_engine(), name="l2", role=Role.LOCAL, link="loopback"))
        await stage.roster.join(await _reachable(second.worker, "grpc", stack), 60.0)
        watching = asyncio.create_task(stage.workers["l1"].worker.watch(_ignore))

        async def moved() -> bool:
            told = [await stage.router.explain(f"r{number}") for number in range(8)]
            return any(len(one.routes) == 2 and one.routes[1].decode.worker == "l2" for one in told)

        await eventually(moved, PATIENT_S)
        watching.cancel()
        gate.open()
        assert [await one for one in asking] == expected
        await stage.quiet()
        await second.quiet()


async def _ignore(ready: bool) -> None:
    """Nobody asks for readiness here."""
