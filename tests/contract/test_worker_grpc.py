"""A worker behind a real gRPC port: the promises to routers that a wire could break."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from worker_harness import DEADLINE_S, Gate, Router, Serving, attached, fake_engine, job, only, served

from headrace.core.errors import Unauthenticated, Unavailable
from headrace.core.jobs import Outcome
from headrace.engine.engine import Engine
from headrace.rpc.clients import WorkerClient
from headrace.rpc.server import serve


@dataclass(frozen=True, slots=True)
class Reached:
    """A worker and two routers' connections to it."""

    here: Serving
    one: WorkerClient
    two: WorkerClient


@asynccontextmanager
async def reached(engine: Engine, token: str = "") -> AsyncIterator[Reached]:
    async with served(engine, token=token) as here:
        server = await serve("127.0.0.1:0", worker=here.worker)
        address = f"127.0.0.1:{server.port}"
        here.worker.announce(address)
        try:
            async with WorkerClient(address) as one, WorkerClient(address) as two:
                yield Reached(here, one, two)
        finally:
            await server.stop(0.0)


async def test_a_job_over_the_wire() -> None:
    async with reached(fake_engine()) as to, attached(to.one) as router:
        key = router.submit(job("a", max_tokens=30))
        only(await router.ended(key), Outcome.LENGTH)
        assert len(router.heard.tokens[key]) == 30
        await to.here.quiet()
        assert 'headrace_jobs_total{kind="local",outcome="length"} 1.0' in await to.one.metrics()


async def test_a_wrong_token_is_refused() -> None:
    async with reached(fake_engine(), token="secret") as to:
        with pytest.raises(Unauthenticated):
            await Router(to.one, token="guess").listen()
        async with attached(to.one, token="secret"):
            pass


async def test_a_connection_that_closes_aborts_its_jobs_only() -> None:
    async with reached(fake_engine()) as to, attached(to.one, "stays") as stays:
        kept = stays.submit(job("kept", max_tokens=300))
        async with attached(to.two, "leaves") as leaves:
            gone = leaves.submit(job("gone", salt=1, max_tokens=400))
            await leaves.until(lambda heard: heard.tokens[gone])
            await to.two.close()
        only(await stays.ended(kept), Outcome.LENGTH)
        await to.here.quiet()
        assert 'headrace_jobs_total{kind="local",outcome="aborted"} 1.0' in await to.one.metrics()


async def test_a_router_that_does_not_read_stops_nobody() -> None:
    async with reached(fake_engine(max_jobs=8)) as to, attached(to.one, "reads") as reads:
        deaf = Router(to.two, "deaf")
        reports = to.two.attach(deaf.said())
        await anext(reports)
        for number in range(4):
            deaf.submit(job(f"unread{number}", max_tokens=400, salt=number))
        keys = [reads.submit(job(f"read{number}", max_tokens=300, salt=number)) for number in range(4)]
        for key in keys:
            only(await reads.ended(key), Outcome.LENGTH)
        await to.here.quiet()
        await reports.aclose()  # type: ignore[attr-defined]


async def test_a_stopping_worker_tells_how_its_jobs_ended() -> None:
    gate = Gate()
    async with reached(fake_engine(before_step=gate)) as to, attached(to.one) as router:
        gate.shut()
        key = router.submit(job("a", max_tokens=400))
        await gate.reached()
        stopping = asyncio.create_task(to.here.worker.stop(0.0))
        assert isinstance((await router.ended(key)).error, Unavailable)
        assert router.heard.draining
        gate.open()
        async with asyncio.timeout(DEADLINE_S):
            await stopping
