"""Local jobs: the worker's promises that need no transfer."""

import asyncio

import pytest
from worker_harness import DEADLINE_S, Gate, Router, attached, fake_engine, job, only, served

from headrace.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
    WorkerLost,
)
from headrace.core.jobs import Abort, Events, Hello, Job, JobKey, Outcome
from headrace.engine.engine import Admission


async def test_local_job_life_cycle() -> None:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        # 1. A router is welcomed with the worker's facts and load.
        welcome = router.heard.welcome
        assert welcome is not None
        assert welcome.info.num_blocks == 64
        assert welcome.load.credits >= 1
        # 2. A job runs to its length, its tokens in order, its first event saying what was cached.
        first = router.submit(job("a", max_tokens=5))
        only(await router.ended(first), Outcome.LENGTH)
        assert len(router.heard.tokens[first]) == 5
        assert router.heard.cached[first] == 0
        # 3. The same prompt again gives the same tokens from the prefix cache.
        again = router.submit(job("b", max_tokens=5))
        only(await router.ended(again), Outcome.LENGTH)
        assert router.heard.tokens[again] == router.heard.tokens[first]
        assert router.heard.cached[again] == 39  # all but the one that the next token needs
        # 4. Afterwards nothing is held, the index heard of the blocks, and the counters add up.
        await here.quiet()
        assert here.published[0][0]
        text = await here.worker.metrics()
        assert 'headrace_jobs_total{kind="local",outcome="length"} 2.0' in text
        assert "vllm:generation_tokens_total 10.0" in text
        assert "vllm:prefix_cache_hits_total 39.0" in text
        assert "vllm:prompt_tokens_total 80.0" in text
        assert "vllm:num_requests_running 0.0" in text


async def test_stop_token_ends_a_job() -> None:
    async with served(fake_engine(stop_after=3)) as here, attached(here.worker) as router:
        key = router.submit(job("a", max_tokens=50))
        only(await router.ended(key), Outcome.STOP)
        assert len(router.heard.tokens[key]) == 3


async def test_token_and_protocol_are_checked() -> None:
    async with served(fake_engine(), token="secret") as here:
        with pytest.raises(Unauthenticated):
            await Router(here.worker, token="guess").listen()
        with pytest.raises(Unauthenticated):
            await Router(here.worker).listen()
        with pytest.raises(InvalidRequest, match="protocol 99"):
            await Router(here.worker, first=Hello("old", "secret", 99)).listen()
        with pytest.raises(InvalidRequest, match="Hello"):
            await Router(here.worker, first=Abort(job("a").key)).listen()
        async with attached(here.worker, token="secret"):
            pass


async def test_refusals_are_told_once_and_leave_nothing() -> None:
    gate = Gate()
    async with served(fake_engine(max_jobs=2, before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        running = [router.submit(job(f"r{i}", salt=i)) for i in range(2)]
        await gate.reached()
        refused = router.submit(job("late"))
        long = router.submit(job("long", prompt=600))
        gate.open()
        await router.until(lambda heard: refused in heard.busy)
        assert router.heard.busy[refused].retry_after_s > 0
        assert isinstance((await router.ended(long)).error, ContextLengthExceeded)
        for key in running:
            only(await router.ended(key), Outcome.LENGTH)
        await here.quiet()
        assert not router.heard.endings[refused]


async def test_abort_overtakes_a_queued_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    engine = fake_engine(before_step=gate)
    taken: list[JobKey] = []
    add = engine.add

    def take(asked: Job) -> Admission:
        taken.append(asked.key)
        return add(asked)

    monkeypatch.setattr(engine, "add", take)
    async with served(engine) as here, attached(here.worker) as router:
        gate.shut()
        running = router.submit(job("running"))
        await gate.reached()
        queued = router.submit(job("queued", salt=9))
        router.say(Abort(queued))
        router.say(Abort(queued))
        only(await router.ended(queued), Outcome.ABORTED)  # while the engine is still in its step
        gate.open()
        only(await router.ended(running), Outcome.LENGTH)
        await here.quiet()
        assert taken == [running]
        assert queued not in router.heard.tokens
        assert len(router.heard.endings[queued]) == 1


async def test_abort_while_running() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        key = router.submit(job("a", max_tokens=400))
        await router.until(lambda heard: len(heard.tokens[key]) > 2)
        router.say(Abort(key))
        only(await router.ended(key), Outcome.ABORTED)
        await here.quiet()
        assert len(router.heard.endings[key]) == 1


async def test_unknown_and_foreign_keys_are_ignored() -> None:
    gate = Gate()
    async with (
        served(fake_engine(before_step=gate)) as here,
        attached(here.worker, "one") as one,
        attached(here.worker, "two") as two,
    ):
        one.say(Abort(job("nobody").key))
        gate.shut()
        key = one.submit(job("a"))
        await gate.reached()
        two.say(Abort(key))
        one.submit(job("a"))  # said twice: ignored
        gate.open()
        only(await one.ended(key), Outcome.LENGTH)
        await here.quiet()
        assert len(one.heard.tokens[key]) == 8
        assert len(one.heard.endings[key]) == 1


@pytest.mark.parametrize("state", ["adding", "running"])
async def test_deadline(state: str) -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        running = router.submit(job("running", salt=1, max_tokens=300, timeout_s=0.05 if state == "running" else 60))
        await gate.reached()
        late = router.submit(job("late", timeout_s=0.05)) if state == "adding" else running
        assert isinstance((await router.ended(late)).error, DeadlineExceeded)
        gate.open()
        if state == "adding":
            only(await router.ended(running), Outcome.LENGTH)
        await here.quiet()
        assert len(router.heard.endings[late]) == 1


@pytest.mark.parametrize("how", ["commands end", "iterator closed"])
async def test_a_cut_stream_aborts_its_jobs_only(how: str) -> None:
    async with served(fake_engine(max_jobs=4)) as here, attached(here.worker, "stays") as stays:
        kept = stays.submit(job("kept", max_tokens=300))
        async with attached(here.worker, "leaves") as leaves:
            gone = [leaves.submit(job(f"gone{i}", salt=i + 1, max_tokens=400)) for i in range(3)]
            await leaves.until(lambda heard: all(heard.tokens[key] for key in gone))
            if how == "commands end":
                leaves.hang_up()
                await stays.until(lambda heard: heard.load is not None and heard.load.running <= 1)
        only(await stays.ended(kept), Outcome.LENGTH)
        assert len(stays.heard.tokens[kept]) == 300
        await here.quiet()
        assert 'headrace_jobs_total{kind="local",outcome="aborted"} 3.0' in await here.worker.metrics()


async def test_commands_that_end_abort_jobs_even_if_nobody_reads() -> None:
    async with served(fake_engine()) as here, attached(here.worker, "observer") as observer:
        deaf = Router(here.worker)
        reports = here.worker.attach(deaf.said())
        await anext(reports)
        deaf.submit(job("a", max_tokens=400))
        await observer.until(lambda heard: heard.load is not None and heard.load.running == 1)
        deaf.hang_up()
        await here.quiet()
        assert 'headrace_jobs_total{kind="local",outcome="aborted"} 1.0' in await here.worker.metrics()
        await reports.aclose()  # type: ignore[attr-defined]


async def test_a_router_that_does_not_read_stops_nobody() -> None:
    async with served(fake_engine()) as here, attached(here.worker, "reads") as reads:
        deaf = Router(here.worker, "deaf")
        reports = here.worker.attach(deaf.said())
        await anext(reports)  # welcomed; from now on it does not read
        unread = deaf.submit(job("unread", max_tokens=200))
        key = reads.submit(job("read", salt=1, max_tokens=200))
        only(await reads.ended(key), Outcome.LENGTH)
        await here.quiet()
        # What it reads in the end is whole and merged: one Events for hundreds of steps.
        events = await anext(reports)
        assert isinstance(events, Events)
        assert [len(event.token_ids) for event in events.tokens] == [200]
        assert [ending.key for ending in events.endings] == [unread]
        await reports.aclose()  # type: ignore[attr-defined]


async def test_drain_lets_jobs_finish_and_takes_no_more() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        key = router.submit(job("a"))
        await gate.reached()
        here.worker.drain()
        await router.until(lambda heard: heard.draining)
        assert not here.worker.ready
        late = router.submit(job("late"))
        await router.until(lambda heard: late in heard.busy)
        gate.open()
        only(await router.ended(key), Outcome.LENGTH)
        await here.quiet()
        assert router.heard.load is not None
        assert router.heard.load.credits == 0


async def test_stop_ends_what_still_runs() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        key = router.submit(job("a", max_tokens=400))
        await gate.reached()
        stopping = asyncio.create_task(here.worker.stop(0.0))
        assert isinstance((await router.ended(key)).error, Unavailable)
        gate.open()
        await stopping


async def test_dead_engine_ends_every_job_and_the_worker() -> None:
    calls = iter(range(1000))

    def before_step() -> None:
        if next(calls) == 10:
            raise RuntimeError("the device is gone")

    async with served(fake_engine(before_step=before_step)) as here, attached(here.worker) as router:
        keys = [router.submit(job(f"j{i}", salt=i, max_tokens=300)) for i in range(3)]
        for key in keys:
            assert isinstance((await router.ended(key)).error, WorkerLost)
        async with asyncio.timeout(DEADLINE_S):
            assert isinstance(await here.worker.failed, RuntimeError)
            await here.worker.drained()
        assert not here.worker.ready
        await router.until(lambda heard: heard.draining)
        late = router.submit(job("late"))
        assert isinstance((await router.ended(late)).error, WorkerLost)
        for key in keys:
            here.engine.remove(key)  # the thread is gone; what it held goes with the process
        assert all(len(router.heard.endings[key]) == 1 for key in keys)


async def test_a_pool_that_does_not_add_up_when_idle_ends_the_worker() -> None:
    engine = fake_engine()
    async with served(engine) as here, attached(here.worker) as router:
        pool = engine._allocator.pool  # type: ignore[attr-defined]
        lost = pool.take()
        key = router.submit(job("a"))
        only(await router.ended(key), Outcome.LENGTH)
        async with asyncio.timeout(DEADLINE_S):
            await here.worker.failed
        assert not here.worker.ready
        pool.release(lost, keep=False)


async def test_credits_follow_jobs() -> None:
    gate = Gate()
    async with served(fake_engine(max_jobs=3, before_step=gate)) as here, attached(here.worker) as router:
        assert router.heard.load is not None
        assert router.heard.load.credits == 3
        gate.shut()
        keys = [router.submit(job(f"j{i}", salt=i, max_tokens=200)) for i in range(3)]
        await gate.reached()
        gate.open()
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 0)
        for key in keys:
            only(await router.ended(key), Outcome.LENGTH)
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 3)
