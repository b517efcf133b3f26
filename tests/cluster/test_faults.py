"""Workers die and clients leave, with every process real and the fake engine, whose pages prove their contents."""

import asyncio
import json
import os
import random
import signal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import redis
from fixtures.cluster import BETWEEN_PROCESSES, Cluster, eventually, running

MODEL = "smollm2-135m"
ANSWER_WITHIN_S = 45.0

between_processes = pytest.mark.parametrize("link", BETWEEN_PROCESSES, indirect=True)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client was left with: an answer, one clear error, or a broken stream."""

    text: str
    finish_reason: str | None
    error: dict[str, Any] | None
    request_id: str

    @property
    def answered(self) -> bool:
        return self.finish_reason is not None and self.error is None


def body(seed: int, max_tokens: int = 48, words: int = 60) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": f"{seed} " + "water " * words,
        "max_tokens": max_tokens,
        "seed": seed,
        "stream": True,
        "ignore_eos": True,
    }


async def listen(client: httpx.AsyncClient, request: dict[str, object], heard: asyncio.Event | None = None) -> Heard:
    """One streamed answer to its end. `heard` is set at the first text."""
    text, finish, error, request_id = "", None, None, uuid.uuid4().hex
    async with client.stream("POST", "/v1/completions", json=request, headers={"x-request-id": request_id}) as response:
        if response.status_code != 200:
            return Heard("", None, json.loads(await response.aread())["error"], request_id)
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                error = event["error"]
                continue
            for choice in event["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
            if heard is not None and text:
                heard.set()
    return Heard(text, finish, error, request_id)


def client_of(cluster: Cluster) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=cluster.url, timeout=ANSWER_WITHIN_S, limits=limits)


async def kill_during(cluster: Cluster, worker: str, seeds: Sequence[int]) -> list[Heard]:
    """Concurrent requests, and SIGKILL for `worker` as soon as one of them has text."""
    first = asyncio.Event()
    async with client_of(cluster) as client, asyncio.timeout(ANSWER_WITHIN_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(listen(client, body(seed), first)) for seed in seeds]
        await first.wait()
        cluster.kill(worker)
        assert not any(task.done() for task in tasks), "the kill came too late to hit anything"
    return [task.result() for task in tasks]


async def expected(cluster: Cluster, seeds: Sequence[int]) -> list[str]:
    """The same requests undisturbed: answers are a function of prompt and seed, so any worker must give these."""
    async with client_of(cluster) as client, asyncio.timeout(ANSWER_WITHIN_S):
        answers = await asyncio.gather(*(listen(client, body(seed)) for seed in seeds))
    assert all(answer.answered for answer in answers)
    return [answer.text for answer in answers]


def assert_survivors_hold(cluster: Cluster, incarnations: dict[str, str], dead: str) -> None:
    """Survivors are at rest, have recounted their pools, and are the processes that they were."""
    cluster.wait_at_rest()
    eventually(lambda: cluster.metric("headrace_pool_checks_total"), lambda count: count > 0)
    for name, incarnation in incarnations.items():
        if name != dead:
            assert cluster.incarnation(name) == incarnation


@between_processes
@pytest.mark.parametrize(("dead", "seeds"), [("prefill-0", range(100, 120)), ("decode-0", range(200, 220))])
async def test_a_killed_worker_of_a_pair_costs_no_request_its_ending(pair: Cluster, dead: str, seeds: range) -> None:
    # 1. Prompts that nobody has seen, so that pages move while the worker dies.
    incarnations = {name: pair.incarnation(name) for name in ("prefill-0", "decode-0")}
    heard = await kill_during(pair, dead, seeds)

    # 2. The dead worker comes back as a new incarnation, and the next requests succeed.
    pair.wait_reborn(dead, incarnations[dead])
    pair.wait_ready()
    texts = await expected(pair, seeds)
    assert_survivors_hold(pair, incarnations, dead)

    # 3. Index entries of those that live stand in Redis; those of the dead have gone.
    with redis.Redis.from_url(pair.redis_url) as connection:
        for name in incarnations:
            eventually(lambda name=name: entries(connection, pair.incarnation(name)), bool)
        eventually(lambda: entries(connection, incarnations[dead]), lambda found: not found)

    # 4. Each of the first ended in the same answer or in one clear error.
    for text, answer in zip(texts, heard, strict=True):
        if answer.answered:
            assert answer.text == text
        else:
            assert answer.error is not None, f"request {answer.request_id} was cut off without a word"
            assert answer.error["message"]
            assert text.startswith(answer.text)


@between_processes
@pytest.mark.parametrize(("dead", "seeds"), [("prefill-1", range(300, 320)), ("decode-1", range(400, 420))])
async def test_with_two_of_each_every_request_finishes_though_one_dies(
    quartet: Cluster, dead: str, seeds: range
) -> None:
    names = ("prefill-0", "prefill-1", "decode-0", "decode-1")
    incarnations = {name: quartet.incarnation(name) for name in names}

    heard = await kill_during(quartet, dead, seeds)

    quartet.wait_reborn(dead, incarnations[dead])
    assert [answer.error for answer in heard] == [None] * len(heard)
    assert [answer.text for answer in heard] == await expected(quartet, seeds)
    assert_survivors_hold(quartet, incarnations, dead)


def entries(connection: redis.Redis, incarnation: str) -> list[str]:
    return [key.decode() for key in connection.keys("headrace:*") if incarnation in key.decode()]


async def test_clients_that_leave_take_nothing_with_them(pair: Cluster) -> None:
    """64 concurrent clients, 10 of which leave at random moments."""
    doubtful = pair.metric("headrace_kv_slabs", state="quarantined")
    received = pair.metric("headrace_kv_transfer_bytes_total", direction="received")
    chance = random.Random(20)
    leavers = set(chance.sample(range(64), 10))

    async def visit(client: httpx.AsyncClient, seed: int) -> bool:
        if seed not in leavers:
            return (await listen(client, body(seed, max_tokens=32))).answered
        patience = chance.choice([0, 1, 2, 5, 20])
        async with client.stream("POST", "/v1/completions", json=body(seed, max_tokens=512)) as response:
            lines = response.aiter_lines()
            for _ in range(patience):
                await anext(lines)
        return True

    async with client_of(pair) as client, asyncio.timeout(ANSWER_WITHIN_S):
        answered = await asyncio.gather(*(visit(client, seed) for seed in range(64)))
    assert all(answered)
    pair.wait_at_rest()
    fleet = pair.fleet()
    assert fleet["requests_running"] == fleet["requests_waiting"] == 0
    assert pair.metric("headrace_kv_slabs", state="quarantined") == doubtful
    assert pair.metric("headrace_kv_transfer_bytes_total", direction="received") > received
    eventually(lambda: pair.metric("headrace_pool_checks_total"), lambda count: count > 0)


async def test_redis_away_is_not_an_outage(pair: Cluster) -> None:
    """I7: the embedded Redis is killed; chats go on at once, and the index fills again by itself."""
    with redis.Redis.from_url(pair.redis_url) as connection:
        server = connection.info("server")["process_id"]
    texts = await expected(pair, range(4))
    os.kill(int(server), signal.SIGKILL)
    assert await expected(pair, range(4)) == texts

    def filled() -> int:
        try:
            with redis.Redis.from_url(pair.redis_url) as connection:
                return len(connection.keys("headrace:*"))
        except redis.exceptions.RedisError:
            return 0

    eventually(filled, lambda count: count >= 4)
    pair.wait_ready()


async def test_disaggregation_never_moves_no_byte(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("never")
    with running(directory, "--engine=fake", "--disaggregation=never") as cluster:
        texts = await expected(cluster, range(4))
        assert all(texts)
        for direction in ("sent", "received"):
            assert cluster.metric("headrace_kv_transfer_bytes_total", direction=direction) == 0
