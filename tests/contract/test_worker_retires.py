"""A worker that leaves: whoever asks for it, how often, and whoever is cancelled meanwhile, each job ends once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker_harness import DEADLINE_S, Gate, Router, Serving, attached, fake_engine, job, only, served

from headrace.core.errors import Unavailable
from headrace.core.jobs import JobKey, Outcome

LONG_S = 600.0


@asynccontextmanager
async def amid() -> AsyncIterator[tuple[Serving, Router, Gate, JobKey]]:
    """A job runs and stands in front of a batch."""
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        key = router.submit(job("a"))
        await gate.reached()
        try:
            yield here, router, gate, key
        finally:
            gate.open()


async def begun(here: Serving, router: Router, grace_s: float) -> asyncio.Task[None]:
    """Retiring."""
    retiring = asyncio.create_task(here.worker.retire(grace_s))
    await router.until(lambda heard: heard.draining)
    return retiring


async def over(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*tasks)


async def test_what_a_cancelled_one_left_is_done_by_the_next() -> None:
    async with amid() as (here, router, gate, key):
        retiring = await begun(here, router, LONG_S)
        retiring.cancel()
        await asyncio.wait({retiring})
        assert not router.heard.endings[key]
        stopping = asyncio.create_task(here.worker.stop(0.0))
        assert isinstance((await router.ended(key)).error, Unavailable)
        gate.open()
        await over(stopping)
        assert len(router.heard.endings[key]) == 1


async def test_nothing_is_closed_while_jobs_still_have_their_time() -> None:
    async with amid() as (here, router, gate, key):
        retiring = await begun(here, router, LONG_S)
        stopping = asyncio.create_task(here.worker.stop(LONG_S))
        gate.open()
        only(await router.ended(key), Outcome.LENGTH)
        await over(retiring, stopping)


async def test_who_says_less_shortens_the_time_for_all() -> None:
    async with amid() as (here, router, gate, key):
        retiring = await begun(here, router, LONG_S)
        sooner = asyncio.create_task(here.worker.retire(0.0))
        assert isinstance((await router.ended(key)).error, Unavailable)
        gate.open()
        await over(retiring, sooner)


async def test_the_time_runs_on_from_the_first_call() -> None:
    async with amid() as (here, router, gate, key):
        retiring = await begun(here, router, 0.05)
        retiring.cancel()
        await asyncio.wait({retiring})
        again = asyncio.create_task(here.worker.retire(LONG_S))
        assert isinstance((await router.ended(key)).error, Unavailable)
        gate.open()
        await over(again)


async def test_who_is_stopped_in_a_hurry_still_tells_every_end() -> None:
    async with amid() as (here, router, gate, key):
        stopping = asyncio.create_task(here.worker.stop(LONG_S))
        await router.until(lambda heard: heard.draining)
        stopping.cancel()
        assert isinstance((await router.ended(key)).error, Unavailable)
        gate.open()
        await asyncio.wait({stopping})
        assert stopping.cancelled()
