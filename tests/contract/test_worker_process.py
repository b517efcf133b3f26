"""A worker process and the fleet's Redis: when it says that it is ready, and in which order it leaves."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.ports import free_ports
from fixtures.random_gguf import write_random
from fixtures.redis_server import RedisServer
from worker_harness import attached, job, only

from headrace.core.blocks import chain
from headrace.core.errors import Unavailable
from headrace.core.jobs import Abort, Drain, Job, Outcome
from headrace.roster.redis_roster import RedisRoster
from headrace.rpc.clients import WorkerClient
from headrace.rpc.health import check
from headrace.rpc.server import LIVE
from headrace.store.connection import Store

DEADLINE_S = 40.0


class Process:
    """A worker of its own. said, logged: the lines of its standard output and its log so far."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.address = address
        self.said: list[str] = []
        self.logged: list[str] = []
        self._process = process
        self._news = asyncio.Condition()

    async def listen(self) -> None:
        async with asyncio.TaskGroup() as readers:
            readers.create_task(self._read(self._process.stdout, self.said))
            readers.create_task(self._read(self._process.stderr, self.logged))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(holds)

    async def ready(self) -> None:
        await self.until(lambda: any("incarnation" in line for line in self.said))

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self._process.wait()

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _read(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for line in stream:
            async with self._news:
                lines.append(line.decode())
                self._news.notify_all()


@asynccontextmanager
async def worker(directory: Path, redis: RedisServer, fleet: str) -> AsyncIterator[Process]:
    model = write_random(directory / "random.gguf")
    (port,) = free_ports(1)
    flags = {
        "engine": "fake",
        "fake-step-ms": 20,
        "kv-cache-memory-bytes": 2**22,
        "link": "tcp",
        "name": "w",
        "port": port,
        "redis-url": redis.url,
        "fleet": fleet,
        "lease-every-s": 0.1,
        "drain-s": 60,
        "cache-dir": directory,
    }
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "worker", str(model)),
        *(f"--{name}={value}" for name, value in flags.items()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    process = Process(started, f"127.0.0.1:{port}")
    listening = asyncio.create_task(process.listen())
    try:
        yield process
    finally:
        await process.end()
        await listening


async def members(redis: RedisServer, fleet: str) -> list[str]:
    store = Store(redis.url)
    try:
        return [info.ref.worker for info in await RedisRoster(store, fleet=fleet).members()]
    finally:
        await store.close()


def long_job() -> Job:
    """Longer than any test looks at it, of tokens that the small vocabulary has."""
    asked, tokens = job("a", max_tokens=450), tuple(range(3, 43))
    return replace(asked, tokens=tokens, hashes=chain(asked.root, tokens))


async def waits(process: Process, redis: RedisServer) -> None:
    """It says what it waits for; it is alive and not ready."""
    await process.until(lambda: any("not ready: waiting for Redis at" in line for line in process.logged))
    (sentence,) = [line for line in process.logged if "not ready" in line]
    assert redis.url in sentence
    assert "--redis-url" in sentence
    await check(process.address, DEADLINE_S, LIVE)
    with pytest.raises(Unavailable, match="not ready"):
        await check(process.address, DEADLINE_S)
    assert process.said == []


async def test_without_its_redis_it_waits_and_is_ready_when_that_comes(
    tmp_path: Path, redis_server: RedisServer, fleet: str
) -> None:
    redis_server.kill()
    async with worker(tmp_path, redis_server, fleet) as process:
        await waits(process, redis_server)
        redis_server.start()
        await process.ready()
        await check(process.address, DEADLINE_S)
        assert await members(redis_server, fleet) == ["w"]


async def test_without_its_redis_it_ends_when_it_is_asked_to(
    tmp_path: Path, redis_server: RedisServer, fleet: str
) -> None:
    redis_server.kill()
    async with worker(tmp_path, redis_server, fleet) as process:
        await waits(process, redis_server)
        process.ask_to_stop()
        assert await process.ended() == 0
        assert process.said == []


@pytest.mark.parametrize(("redis", "asked_by"), [("there", "signal"), ("frozen", "signal"), ("there", "router")])
async def test_it_leaves_in_order(
    redis: str, asked_by: str, tmp_path: Path, redis_server: RedisServer, fleet: str
) -> None:
    async with worker(tmp_path, redis_server, fleet) as process:
        await process.ready()
        async with WorkerClient(process.address) as client, attached(client) as router:
            key = router.submit(long_job())
            await router.until(lambda heard: heard.tokens[key])
            if redis == "frozen":
                redis_server.freeze()
            if asked_by == "signal":
                process.ask_to_stop()
            else:
                router.say(Drain(45.0))
            # 1. It is not ready, and only then are routers told; what they send nevertheless is not taken.
            await router.until(lambda heard: heard.draining)
            with pytest.raises(Unavailable, match="not ready"):
                await check(process.address, DEADLINE_S)
            late = router.submit(replace(long_job(), key=job("late").key))
            await router.until(lambda heard: late in heard.busy)
            # 2. Its job goes on, and it stays in the fleet for as long.
            if redis == "there":
                assert await members(redis_server, fleet) == ["w"]
            assert not router.heard.endings[key]
            router.say(Abort(key))
            only(await router.ended(key), Outcome.ABORTED)
        # 3. Then it goes.
        assert await process.ended() == 0
        if redis == "there":
            assert await members(redis_server, fleet) == []
