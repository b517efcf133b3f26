"""A worker whose engine stands still: everybody hears that it is not ready, and when it is again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from worker_harness import DEADLINE_S, Gate, Serving, attached, fake_engine, job, only, served

from headrace.core.errors import Unavailable
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Abort, JobKind, Outcome
from headrace.engine.engine import Engine
from headrace.rpc.health import check
from headrace.rpc.server import serve
from headrace.transfer.carrier import TransferStatus

STALL_S = 0.2


class Watched:
    """A watched worker with its health service. told: what `watch` said of its readiness, in order."""

    def __init__(self, here: Serving, address: str) -> None:
        self.here, self.address = here, address
        self.told: list[bool] = []
        self._more = asyncio.Condition()

    async def tell(self, ready: bool) -> None:
        async with self._more:
            self.told.append(ready)
            self._more.notify_all()

    async def until(self, holds: Callable[[list[bool]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._more:
            await self._more.wait_for(lambda: holds(self.told))


@asynccontextmanager
async def watched(engine: Engine, stall_s: float = STALL_S) -> AsyncIterator[Watched]:
    async with served(engine, stall_s=stall_s) as here:
        server = await serve("127.0.0.1:0", worker=here.worker)
        await server.set_ready(True)
        watched = Watched(here, f"127.0.0.1:{server.port}")

        async def tell(ready: bool) -> None:
            await server.set_ready(ready, here.worker.obstacle)
            await watched.tell(ready)

        watching = asyncio.create_task(here.worker.watch(tell))
        try:
            yield watched
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await server.stop(0.0)


async def test_a_step_that_hangs_is_told_and_so_is_its_end() -> None:
    gate = Gate()
    async with watched(fake_engine(before_step=gate)) as watch, attached(watch.here.worker) as router:
        worker = watch.here.worker
        assert worker.ready
        gate.shut()
        hanging = router.submit(job("a"))
        await gate.reached()
        # 1. Not ready: the worker itself, its health service, its metrics, and its routers with the reason.
        await watch.until(lambda told: told == [False])
        assert not worker.ready
        with pytest.raises(Unavailable, match="not ready"):
            await check(watch.address, DEADLINE_S)
        assert "headrace_engine_stalled 1.0" in await worker.metrics()
        await router.until(lambda heard: heard.load is not None and heard.load.unready)
        assert router.heard.load is not None
        assert router.heard.load.unready == "its engine has been in one step for more than 0.2 s"
        assert router.heard.load.credits == 0
        # 2. What comes nevertheless is sent elsewhere.
        late = router.submit(job("b"))
        await router.until(lambda heard: late in heard.busy)
        # 3. The step ends, the job goes on, and the worker is ready again.
        gate.open()
        only(await router.ended(hanging), Outcome.LENGTH)
        await watch.until(lambda told: told == [False, True])
        assert worker.ready
        await check(watch.address, DEADLINE_S)
        assert "headrace_engine_stalled 0.0" in await worker.metrics()
        await router.until(lambda heard: heard.load is not None and not heard.load.unready and heard.load.credits)
        await watch.here.quiet()


async def test_jobs_that_wait_for_pages_without_a_step_are_told() -> None:
    async with watched(fake_engine(blocks=8)) as watch, attached(watch.here.worker) as router:
        granted = router.submit(job("g", JobKind.DECODE, prompt=80, peer=WorkerRef("p", "life")))
        ticket = await router.grant(granted)
        waiting = router.submit(job("w", prompt=100))
        await watch.until(lambda told: told == [False])
        assert watch.here.worker.load.unready.startswith("1 jobs have waited for KV pages")
        # The transfer ends, the pages are free, the job that waited runs.
        router.say(Abort(granted))
        only(await router.ended(granted), Outcome.ABORTED)
        assert watch.here.carrier is not None
        watch.here.carrier.close_transfer(ticket.transfer, TransferStatus.CANCELLED)
        only(await router.ended(waiting), Outcome.LENGTH)
        await watch.until(lambda told: told == [False, True])
        await watch.here.quiet()


async def test_a_stream_that_stands_still_for_want_of_a_page_is_told() -> None:
    """It runs and nothing waits, yet there is no step: a transfer holds the page that it needs next."""
    gate = Gate()
    async with watched(fake_engine(blocks=8, before_step=gate)) as watch, attached(watch.here.worker) as router:
        gate.shut()
        stream = router.submit(job("s", prompt=40, max_tokens=60))
        await gate.reached()
        granted = router.submit(job("g", JobKind.DECODE, prompt=48, salt=1, peer=WorkerRef("p", "life")))
        gate.open()
        ticket = await router.grant(granted)
        await watch.until(lambda told: told == [False])
        load = watch.here.worker.load
        assert load.waiting == 0
        assert load.unready == "1 jobs have waited for KV pages for more than 0.2 s without a step"
        router.say(Abort(granted))
        only(await router.ended(granted), Outcome.ABORTED)
        assert watch.here.carrier is not None
        watch.here.carrier.close_transfer(ticket.transfer, TransferStatus.CANCELLED)
        only(await router.ended(stream), Outcome.LENGTH)
        await watch.until(lambda told: told == [False, True])
        await watch.here.quiet()


async def test_neither_idleness_nor_a_grant_nor_many_short_steps_are_a_stall() -> None:
    gate = Gate()
    async with watched(fake_engine(before_step=gate), 0.5) as watch, attached(watch.here.worker) as router:
        router.submit(job("g", JobKind.DECODE, peer=WorkerRef("p", "life")))  # waits for its transfer, not for a step
        key = router.submit(job("long", prompt=40, max_tokens=400))
        only(await router.ended(key), Outcome.LENGTH)
        # The stall after it is the first thing ever told: nothing was, while there was much or nothing to do.
        gate.shut()
        router.submit(job("a", salt=1))
        await gate.reached()
        await watch.until(lambda told: len(told) > 0)
        assert watch.told == [False]
        gate.open()
        await watch.until(lambda told: told == [False, True])
        router.hang_up()
        assert watch.here.carrier is not None
        watch.here.carrier.answers_cancel = True


async def test_slabs_that_come_and_go_without_a_step_are_told() -> None:
    async with watched(fake_engine(max_jobs=8)) as watch, attached(watch.here.worker) as router:
        carrier = watch.here.carrier
        assert carrier is not None
        carrier.health = replace(carrier.health, quarantined_slabs=64)
        await router.until(lambda heard: heard.load is not None and heard.load.quarantined_slabs == 64)
        assert router.heard.load is not None
        assert router.heard.load.credits == 0
        carrier.health = replace(carrier.health, quarantined_slabs=0)
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 8)
        assert watch.told == []
