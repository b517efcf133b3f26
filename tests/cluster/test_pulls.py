"""A worker fetches a prefix that another holds: real processes, the real engine, batch-invariant, on a tiny model.

A prompt that fits nobody better goes to `local-0`. It then holds the prefix, and is kept busy by others that begin with
it, so the next one is read by `local-1`.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import redis
from fixtures.cluster import Cluster, running
from fixtures.eventually import eventually
from fixtures.streams import Answer, listen
from fixtures.tiny_checkpoint import Case, make_checkpoint
from test_faults import client_of

MODEL = "tiny"
HOLDER, READER = "local-0", "local-1"
PREFIX = 2000
SLOTS = 2
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("pulls")
    make_checkpoint(Case("llama", "Llama", {"max_position_embeddings": 4096}), directory / "tiny")
    arguments = (
        *(str(directory / "tiny"), f"--served-model-name={MODEL}", "--dtype=float32", "--batch-invariant"),
        # Small steps: a prompt takes a while to compute.
        *("--local=2", f"--max-num-seqs={SLOTS}", "--max-num-batched-tokens=16"),
        *("--lease-ttl-s=2", "--lease-every-s=0.5", "--kv-cache-memory-bytes=5242880"),
    )
    with running(directory, *arguments, link="tcp") as cluster:
        yield cluster


def prompt(salt: int, tokens: int = PREFIX) -> list[int]:
    return [3 + (17 * salt + 5 * place + place * place * (salt + 1)) % 300 for place in range(tokens)]


def asked(tokens: list[int], *, answer: int = 40, seed: int = 7) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": tokens,
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": seed,
        "logprobs": 2,
    }


async def answered(client: httpx.AsyncClient, body: dict[str, object], request: str) -> Answer:
    async with asyncio.timeout(WITHIN_S):
        answer = await listen(client, body, request)
    assert answer.error is None
    return answer


async def explained(client: httpx.AsyncClient, request: str) -> dict[str, Any]:
    return dict((await client.get(f"/v1/requests/{request}/explain")).raise_for_status().json())


async def read_by(client: httpx.AsyncClient, request: str) -> str:
    return str((await explained(client, request))["routes"][-1]["decode"]["worker"])


@asynccontextmanager
async def busy(client: httpx.AsyncClient, tokens: list[int]) -> AsyncIterator[None]:
    """The holder writes as many answers as it can, to prompts that begin with these tokens; the reader has measured how
    fast it computes."""
    names, begun = [uuid.uuid4().hex for _ in range(SLOTS)], [asyncio.Event() for _ in range(SLOTS)]
    bodies = [asked([*tokens, 5 + number], answer=1500) for number in range(SLOTS)]
    writing = [
        asyncio.create_task(listen(client, body, name, event))
        for body, name, event in zip(bodies, names, begun, strict=True)
    ]
    try:
        async with asyncio.timeout(WITHIN_S):
            for event in begun:
                await event.wait()
        assert [await read_by(client, name) for name in names] == [HOLDER] * SLOTS
        other = uuid.uuid4().hex
        await answered(client, asked(prompt(99, 400), answer=2), other)
        assert await read_by(client, other) == READER
        assert not any(one.done() for one in writing), "the holder is not busy any more"
        yield
    finally:
        for one in writing:
            one.cancel()
        await asyncio.wait(writing)


def counted(cluster: Cluster) -> Callable[[str], float]:
    """How many pulls have ended one way since."""
    before = {end: _pulls(cluster, end) for end in ("pulled", "busy", "failed", "late")}
    return lambda end: _pulls(cluster, end) - before[end]


def _pulls(cluster: Cluster, end: str) -> float:
    return cluster.metric("headrace_kv_pulls_total", outcome=end)


def received(cluster: Cluster, worker: str) -> float:
    return cluster.metric("headrace_kv_transfer_bytes_total", direction="received", worker=worker)


async def known(client: httpx.AsyncClient, tokens: list[int]) -> None:
    """The router's index knows where these tokens are: it expects them there."""

    async def expects() -> bool:
        request = uuid.uuid4().hex
        await answered(client, asked(tokens, answer=1), request)
        told = await explained(client, request)
        return bool(told["routes"][0]["cached_tokens"] >= len(tokens) - 16)

    await eventually(expects, WITHIN_S)


def pool_tokens(cluster: Cluster) -> int:
    """All that one worker has room for."""
    worker = cluster.fleet()["workers"][0]
    return int(worker["load"]["total_blocks"] * worker["info"]["layout"]["block_tokens"])


async def at_rest(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.wait_at_rest)


async def test_a_prefix_that_another_holds_is_fetched(cluster: Cluster) -> None:
    mine = prompt(20)
    await asyncio.to_thread(cluster.wait_ready)
    since, before = counted(cluster), received(cluster, READER)
    async with client_of(cluster) as client:
        alone = await answered(client, asked(mine), "pulled-alone")
        assert await read_by(client, "pulled-alone") == HOLDER
        await known(client, mine)
        async with busy(client, mine):
            heard = await answered(client, asked(mine), "pulled")
        told = await explained(client, "pulled")
    route = told["routes"][0]
    assert (route["decode"]["worker"], route["pull"]["holder"]["worker"]) == (READER, HOLDER)
    assert any(f"fetches {route['pull']['tokens']} tokens from {HOLDER}" in reason for reason in route["reasons"])
    assert told["actual_cached_tokens"] == route["pull"]["tokens"] == PREFIX - 16
    assert "pull" in [part["stage"] for part in told["waterfall"]]
    assert {(note["role"], note["worker"]["worker"]) for note in told["notes"]} == {
        ("prefill", HOLDER),
        ("decode", READER),
    }
    assert heard.said == alone.said
    moved = received(cluster, READER) - before
    assert moved == sum(note["payload_bytes"] for note in told["notes"]) / 2 > 0
    assert since("pulled") == 1
    print(f"{moved:,.0f} bytes fetched in {told['notes'][0]['seconds'] * 1000:.1f} ms, {route['reasons'][-1]}")
    await at_rest(cluster)


async def test_a_holder_that_dies_amid_a_pull_costs_time_only(cluster: Cluster) -> None:
    mine = prompt(30)
    await asyncio.to_thread(cluster.wait_ready)
    since = counted(cluster)
    async with client_of(cluster) as client:
        alone = await answered(client, asked(mine), "killed-alone")
        assert await read_by(client, "killed-alone") == HOLDER
        await known(client, mine)
        async with busy(client, mine):
            dead = cluster.incarnation(HOLDER)
            os.kill(cluster.pid(HOLDER), signal.SIGSTOP)
            asking = asyncio.create_task(answered(client, asked(mine), "killed"))
            await eventually(lambda: _amid_pull(client, "killed"), WITHIN_S)
            cluster.kill(HOLDER)
            heard = await asking
        told = await explained(client, "killed")
    assert (told["routes"][0]["decode"]["worker"], told["routes"][0]["pull"]["holder"]["worker"]) == (READER, HOLDER)
    assert len(told["routes"]) == 1
    assert heard.said == alone.said
    assert since("failed") + since("late") == 1
    assert since("pulled") == 0
    await asyncio.to_thread(cluster.wait_reborn, HOLDER, dead)
    await at_rest(cluster)


async def test_a_prefix_that_another_evicted_is_computed(cluster: Cluster) -> None:
    """The index is told nothing meanwhile, because its Redis stands still."""
    await asyncio.to_thread(cluster.wait_ready)
    mine, theirs = prompt(1), prompt(2, 300)
    with redis.Redis.from_url(cluster.redis_url) as connection:
        server = int(connection.info("server")["process_id"])
    since = counted(cluster)
    async with client_of(cluster) as client:
        alone = await answered(client, asked(mine), "evicted-alone")
        assert await read_by(client, "evicted-alone") == HOLDER
        await known(client, mine)
        await known(client, theirs)
        os.kill(server, signal.SIGSTOP)
        try:
            for salt in range(100, 101 + pool_tokens(cluster) // PREFIX):
                await answered(client, asked(prompt(salt), answer=1), f"filling-{salt}")
                assert await read_by(client, f"filling-{salt}") == HOLDER
            async with busy(client, theirs):
                heard = await answered(client, asked(mine), "evicted")
        finally:
            os.kill(server, signal.SIGCONT)
        told = await explained(client, "evicted")
        assert told["routes"][0]["pull"]["holder"]["worker"] == HOLDER
        assert (len(told["routes"]), told["actual_cached_tokens"]) == (1, 0)
    assert heard.said == alone.said
    assert since("failed") == 1
    assert since("pulled") == 0
    await at_rest(cluster)


async def _amid_pull(client: httpx.AsyncClient, request: str) -> bool:
    answer = await client.get(f"/v1/requests/{request}/explain")
    if answer.status_code != httpx.codes.OK:
        return False
    return any(part["stage"] == "pull" for part in answer.json()["waterfall"])
