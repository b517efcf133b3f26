"""Two worker processes under a chaos harness: a request is held at every phase, and its frames are damaged."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fixtures.ports import free_ports
from fixtures.random_gguf import write_random
from fixtures.redis_server import RedisServer
from worker_harness import Router, attached, job, only

from headrace.chaos.control import Control, Damage, Hold, Phase, WireFault
from headrace.chaos.tcp_fault import Harm, TcpFault
from headrace.chaos.tcp_proxy import TcpProxy
from headrace.core.blocks import chain
from headrace.core.jobs import Activate, Ending, Job, JobKey, JobKind, Outcome
from headrace.rpc.clients import WorkerClient
from headrace.transfer.tcp_head import Verb

START_S = 60.0
WAIT_S = 10.0
TOKENS = tuple(3 + index % 40 for index in range(100))


@asynccontextmanager
async def worker(directory: Path, redis: RedisServer, fleet: str, role: str) -> AsyncIterator[str]:
    """A process of its own, named for its role; its address. It ends with the block."""
    (port,) = free_ports(1)
    flags = {
        "engine": "fake",
        "role": role,
        "name": role,
        "kv-cache-memory-bytes": 2**22,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 16,
        "link": "tcp",
        "port": port,
        "redis-url": redis.url,
        "fleet": fleet,
        "drain-s": 0,
        "cache-dir": directory,
        "chaos-socket": directory / "chaos.sock",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "worker", str(directory / "random.gguf"), "--no-enable-prefix-caching"),
        *(f"--{name}={value}" for name, value in flags.items()),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if b"incarnation" in line:
                    break
            else:
                pytest.fail(f"the {role} worker ended before it was ready")
        yield f"127.0.0.1:{port}"
        process.terminate()
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(slots=True)
class Desk:
    """A router's part, done by hand, with a harness beside it. proxies: before the links of the workers, by name.

    advertised: what those were told to call themselves. addresses: what tickets said.
    """

    control: Control
    prefill: Router
    decode: Router
    proxies: dict[str, TcpProxy]
    advertised: dict[str, str]
    addresses: list[str] = field(default_factory=list)

    async def serve(self, name: str) -> tuple[list[int], Ending]:
        """One request through both workers; its tokens, and how its decode job ended."""
        assert self.prefill.heard.welcome is not None
        key = self.decode.submit(replace(_job(name, JobKind.DECODE), peer=self.prefill.heard.welcome.info.ref))
        ticket = await self.decode.grant(key)
        self.addresses.append(ticket.address)
        self.prefill.submit(replace(_job(name, JobKind.PREFILL), ticket=ticket))
        await self.prefill.until(lambda heard: heard.tokens[key])
        (first,) = self.prefill.heard.tokens[key]
        self.decode.say(Activate(key, first))
        ending = await self.decode.ended(key)
        await self.prefill.ended(key)
        return [first, *self.decode.heard.tokens[key]], ending


def _job(name: str, kind: JobKind) -> Job:
    asked = job(name, kind, max_tokens=12)
    return replace(asked, key=JobKey(name, 1), tokens=TOKENS, prompt_len=len(TOKENS), hashes=chain(asked.root, TOKENS))


@pytest.fixture
async def desk(tmp_path: Path, redis_server: RedisServer, fleet: str) -> AsyncIterator[Desk]:
    write_random(tmp_path / "random.gguf")
    proxies: dict[str, TcpProxy] = {}
    advertised: dict[str, str] = {}

    async def proxied(name: str, address: str) -> str:
        proxies[name] = TcpProxy(address)
        advertised[name] = await proxies[name].start("127.0.0.1")
        return advertised[name]

    async with AsyncExitStack() as closing:
        control = Control(tmp_path / "chaos.sock", proxied)
        await control.start()
        closing.push_async_callback(control.close)
        roles = ("prefill", "decode")
        workers = (worker(tmp_path, redis_server, fleet, role) for role in roles)
        addresses = [await closing.enter_async_context(one) for one in workers]
        clients = [await closing.enter_async_context(WorkerClient(address)) for address in addresses]
        prefill, decode = [await closing.enter_async_context(attached(client)) for client in clients]
        assert set(control.workers()) == set(roles)
        yield Desk(control, prefill, decode, proxies, advertised)
        for proxy in proxies.values():
            await proxy.close()


async def test_a_request_is_held_at_every_phase_and_struck_on_every_way(desk: Desk) -> None:
    expected, ending = await desk.serve("plain")
    only(ending, Outcome.LENGTH)
    assert len(expected) == 12
    # 1. Tickets name the place that the harness said.
    assert set(desk.addresses) == {desk.advertised["decode"]}
    # 2. Each phase, on the worker that it is on; another request is not held.
    for worker_name, hold in (
        ("decode", Hold(Phase.BEFORE_GRANT, "held-0")),
        ("prefill", Hold(Phase.AFTER_GRANT, "held-1")),
        ("prefill", Hold(Phase.MID_CHUNK, "held-2", at=40)),
        ("prefill", Hold(Phase.BEFORE_COMMIT, "held-3")),
        ("decode", Hold(Phase.AFTER_COMMIT, "held-4")),
        ("decode", Hold(Phase.MID_DECODE, "held-5", at=4)),
    ):
        await desk.control.arm(worker_name, hold)
        assert (await desk.serve(f"not-{hold.request_prefix}"))[0] == expected
        name = f"{hold.request_prefix}.a"
        serving = asyncio.create_task(desk.serve(name))
        held = await desk.control.held(worker_name, WAIT_S)
        assert (held.request, held.attempt, held.phase) == (name, 1, hold.phase)
        assert not serving.done()
        await desk.control.release(worker_name)
        assert (await desk.control.let_go(worker_name, WAIT_S)).released
        assert (await serving)[0] == expected
    # 3. A page that the link damages, and one that is damaged on its way, are refused.
    await desk.control.arm_wire("prefill", WireFault(Damage.CORRUPTED, request_prefix="struck"))
    await _refused(desk, "struck", lambda: desk.control.struck("prefill", WAIT_S))
    desk.proxies["decode"].arm(TcpFault(Harm.CORRUPTED, Verb.DATA))
    await _refused(desk, "harmed", lambda: desk.proxies["decode"].struck(WAIT_S))
    assert (await desk.serve("last"))[0] == expected


async def _refused(desk: Desk, name: str, struck: Callable[[], Awaitable[object]]) -> None:
    _, ending = await desk.serve(name)
    await struck()
    only(ending, Outcome.FAILED)
    assert "checksum" in str(ending.error)
