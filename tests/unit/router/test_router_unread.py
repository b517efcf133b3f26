"""A caller that does not read holds nothing beyond its request's deadline, and is told so when it reads again."""

import asyncio

import pytest
from scripted_worker import ScriptedWorker, expected
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options

from headrace.core.errors import DeadlineExceeded, Unavailable
from headrace.router.leg import Over


async def at_rest(toy: ToyCluster) -> None:
    """No request runs, no worker has a job, every credit is back."""
    await toy.status_when(lambda status: not status.requests_running)
    await toy.quiet()


def gated(toy: ToyCluster, *names: str) -> list[ScriptedWorker]:
    """Workers that wait before the answer's third token."""
    workers = [toy.worker(name) for name in names]
    for worker in workers:
        worker.gate("token 2")
    return workers


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("pair", [False, True])
async def test_an_unread_request_ends_at_its_deadline(chunks: int, pair: bool) -> None:
    async with cluster(local=1 - pair, prefill=int(pair), decode=int(pair)) as toy:
        (worker,) = gated(toy, "d1" if pair else "l1")
        stream = toy.router.generate(ask(timeout_s=0.5))
        read = [await anext(stream) for _ in range(chunks)]
        # 1. Nobody asks for more: at the deadline everything is given back.
        await at_rest(toy)
        assert len(worker.aborts) == 1
        assert (await toy.router.explain("r1")).outcome == "deadline_exceeded"
        # 2. The caller that reads again is told, once; its end changes nothing any more.
        assert ids(read) == expected(3, chunks)
        with pytest.raises(DeadlineExceeded, match=r"0.5 s"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert (await toy.router.explain("r1")).outcome == "deadline_exceeded"
        assert toy.metrics.registry.get_sample_value("headrace_requests_total", {"outcome": "deadline_exceeded"}) == 1.0


async def test_a_caller_that_leaves_as_the_time_runs_out_has_left() -> None:
    """1. It leaves amid a transfer. 2. While its workers have yet to let go of the pages, the deadline passes."""
    async with cluster(prefill=1, decode=1, with_options=options(drain_s=5.0)) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        handing, aborting = p.gate("handover"), p.gate("abort")
        d.gate("token 1")
        stream = toy.router.generate(ask(timeout_s=0.5))
        await anext(stream)
        leaving = asyncio.create_task(stream.aclose())
        (run,) = toy.router._conductor.runs
        await toy.until(lambda: any(isinstance(notice.word, Over) for notice in run.inbox._queue))
        aborting.set()
        handing.set()
        await leaving
        assert (await toy.router.explain("r1")).outcome == "cancelled"
        await at_rest(toy)


async def test_its_id_is_free_for_another_whose_place_the_first_leaves_alone() -> None:
    async with cluster(local=1) as toy:
        (worker,) = gated(toy, "l1")
        first = toy.router.generate(ask(timeout_s=0.5))
        await anext(first)
        await at_rest(toy)
        second = toy.router.generate(ask())
        await anext(second)
        await first.aclose()
        assert (await toy.router.status()).requests_running == 1
        assert (await toy.router.explain("r1")).outcome == "running"
        worker.gate("token 2").set()
        assert ids([chunk async for chunk in second]) == expected(3, 6)[1:]
        await toy.quiet()


async def test_an_answer_that_was_complete_stays_so() -> None:
    """The caller has the last chunk and never asks whether there is another."""
    async with cluster(local=1) as toy:
        stream = toy.router.generate(ask(max_tokens=1, timeout_s=0.5))
        chunk = await anext(stream)
        assert chunk.finish_reason is not None
        await at_rest(toy)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert (await toy.router.explain("r1")).outcome == "length"


async def test_a_stopping_router_does_not_wait_for_who_does_not_read() -> None:
    async with cluster(local=1, with_options=options(drain_s=60.0)) as toy:
        gated(toy, "l1")
        streams = [toy.router.generate(ask(f"r{number}")) for number in range(3)]
        for stream in streams:
            await anext(stream)
        async with asyncio.timeout(5):
            await toy.router.stop(0.0)
        for stream in streams:
            with pytest.raises(Unavailable, match="stopping"):
                await anext(stream)
        assert toy.ledger_jobs == 0


async def test_who_reads_slowly_within_the_time_misses_nothing() -> None:
    async with cluster(local=1) as toy:
        stream = toy.router.generate(ask())
        first = await anext(stream)
        await toy.worker("l1").passed("token 5")
        assert ids([first, *[chunk async for chunk in stream]]) == expected(3, 6)
        await toy.quiet()
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
