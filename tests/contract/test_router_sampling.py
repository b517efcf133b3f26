"""Reports through real workers with fake engines: the same from one worker as from two, and after a worker stopped."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from test_router_workers import PROMPT, NumberText, a_request, cluster, over, tokens
from worker_harness import Gate

from headrace.core.fleet import WorkerRef
from headrace.core.generation import Chunk, GenerateRequest, PromptEcho
from headrace.core.logprobs import TokenLogprob

PIECES = tuple(map(NumberText().piece, PROMPT))


def wanted(request: str, **changes: object) -> GenerateRequest:
    plain = a_request(request)
    return replace(plain, sampling=replace(plain.sampling, logprobs=2, prompt_logprobs=1), **changes)


async def told(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in stream]


def reports(chunks: list[Chunk]) -> list[TokenLogprob]:
    assert [one.token for chunk in chunks for one in chunk.logprobs] == tokens(chunks)
    return [one for chunk in chunks for one in chunk.logprobs]


@over
async def test_two_workers_report_what_one_does(over: str) -> None:
    """Also where the prompt is in both caches: its logprobs are then computed anew, and nothing counts as cached."""
    async with cluster("l1", over=over) as alone:
        local = await told(alone.router.generate(wanted("r", echo=True)))
        await alone.quiet()
    async with cluster("p1", "d1", over=over) as pair:
        cold = await told(pair.router.generate(wanted("cold", echo=True)))
        warm = await told(pair.router.generate(wanted("warm", echo=True)))
        assert await pair.moved("received") > 0
        await pair.quiet()
    for chunks in (cold, warm):
        assert tokens(chunks) == tokens(local)
        assert reports(chunks) == reports(local)
        assert chunks[0].prompt_logprobs == local[0].prompt_logprobs
        assert [one.token for one in chunks[0].prompt_logprobs] == list(PROMPT[1:])
        assert chunks[0].prompt == PromptEcho(b"".join(PIECES).decode(), PROMPT, PIECES)
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.cached_tokens == 0
    assert len(reports(local)) == 12
    assert all(len(one.top_pieces) == 2 for one in reports(local))


@over
@pytest.mark.parametrize("stopped", ["p1", "d1"])
async def test_a_worker_that_stops_costs_no_report(over: str, stopped: str) -> None:
    """Told once, whole and in order, whether the prompt had been reported before the worker went or not."""
    gate = Gate()
    async with cluster("p1", "p2", "d1", "d2", over=over, gates={stopped: gate}) as fleet:
        whole = await told(fleet.router.generate(wanted("before")))
        gate.shut_after(2 if stopped == "d1" else 1)
        calls = [asyncio.create_task(told(fleet.router.generate(wanted(f"r{number}")))) for number in range(4)]
        await gate.reached()
        await fleet.roster.leave(WorkerRef(stopped, f"{stopped}-life-1"))
        stopping = asyncio.create_task(fleet.workers[stopped].worker.stop(0.0))
        gate.open()
        async with asyncio.timeout(20):
            for chunks in await asyncio.gather(*calls):
                assert tokens(chunks) == tokens(whole)
                assert reports(chunks) == reports(whole)
                assert chunks[0].prompt_logprobs == whole[0].prompt_logprobs
                assert not any(chunk.prompt_logprobs for chunk in chunks[1:])
        await stopping
        await fleet.quiet(stopped)
