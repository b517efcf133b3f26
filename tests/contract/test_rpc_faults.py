"""A peer dies, freezes or falls silent on the network: the other side says so within the keepalive bound."""

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rpc_peer import KEEPALIVE, commands
from rpc_scripted import ScriptedWorker

from headrace.core.errors import Unavailable, WorkerLost
from headrace.core.generation import GenerateRequest, TextPrompt
from headrace.core.jobs import Welcome
from headrace.rpc.clients import InferenceClient, WorkerClient
from headrace.rpc.server import serve

PEER = Path(__file__).with_name("rpc_peer.py")
# A dead peer's connection breaks at once; a silent one's after interval and timeout, and what a busy machine adds.
AT_ONCE_S = 1.0
SILENCE_S = KEEPALIVE.interval_s + KEEPALIVE.timeout_s + 2.0
REQUEST = GenerateRequest("r-1", "silent", TextPrompt("Hi"))


@asynccontextmanager
async def peer(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """A process of rpc_peer.py that is ready, and the rest of its ready line."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(PEER), *arguments, stdout=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = b""
            while not line.startswith(b"ready"):
                line = await process.stdout.readline()
                assert line, "the peer ended before it was ready"
        yield process, line.decode().removeprefix("ready").strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)


def freeze(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)


FAULTS = pytest.mark.parametrize(("strike", "bound_s"), [(kill, AT_ONCE_S), (freeze, SILENCE_S)])


@FAULTS
async def test_an_attachment_loses_its_worker(strike: Callable[[Process], None], bound_s: float) -> None:
    async with peer("server") as (process, port), WorkerClient(f"127.0.0.1:{port}", keepalive=KEEPALIVE) as client:
        reports = client.attach(commands())
        assert isinstance(await anext(reports), Welcome)
        strike(process)
        began = time.monotonic()
        with pytest.raises(WorkerLost, match=f"127.0.0.1:{port}"):
            await anext(reports)
        assert time.monotonic() - began < bound_s


@FAULTS
async def test_a_generation_loses_its_server(strike: Callable[[Process], None], bound_s: float) -> None:
    async with peer("server") as (process, port), InferenceClient(f"127.0.0.1:{port}", keepalive=KEEPALIVE) as client:
        stream = client.generate(REQUEST)
        await anext(stream)
        strike(process)
        began = time.monotonic()
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
            await anext(stream)
        assert time.monotonic() - began < bound_s


@FAULTS
async def test_a_worker_loses_its_router(strike: Callable[[Process], None], bound_s: float) -> None:
    worker = ScriptedWorker()
    server = await serve("127.0.0.1:0", worker=worker, keepalive=KEEPALIVE)
    try:
        async with peer("client", f"127.0.0.1:{server.port}") as (process, _):
            assert (worker.tally.begun, worker.tally.ended) == (1, 0)
            strike(process)
            async with asyncio.timeout(bound_s):
                await worker.tally.until(ended=1)
    finally:
        await server.stop(0)


class Wire:
    """A TCP relay to a port that can be cut without either end being told: half-open for both."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._cut = False
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps = asyncio.TaskGroup()

    async def __aenter__(self) -> "Wire":
        await self._pumps.__aenter__()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._pumps.__aexit__(None, None, None)
        await self._server.wait_closed()

    def cut(self) -> None:
        self._cut = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, far_writer]
        self._pumps.create_task(self._pump(reader, far_writer))
        self._pumps.create_task(self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self._cut:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            return


async def test_a_cut_wire_is_noticed_at_both_ends() -> None:
    worker = ScriptedWorker()
    server = await serve("127.0.0.1:0", worker=worker, keepalive=KEEPALIVE)
    try:
        async with Wire(server.port) as wire, WorkerClient(f"127.0.0.1:{wire.port}", keepalive=KEEPALIVE) as client:
            reports = client.attach(commands())
            await anext(reports)
            wire.cut()
            async with asyncio.timeout(SILENCE_S):
                await asyncio.gather(lost(reports), worker.tally.until(ended=1))
    finally:
        await server.stop(0)


async def lost(reports: AsyncIterator[object]) -> None:
    with pytest.raises(WorkerLost):
        await anext(reports)


async def test_a_listener_that_never_speaks_is_no_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with WorkerClient(address, timeout_s=0.5, keepalive=KEEPALIVE) as client:
            began = time.monotonic()
            with pytest.raises(WorkerLost, match="sent no welcome"):
                await anext(client.attach(commands()))
            assert time.monotonic() - began < 2.0


async def test_nobody_there_is_a_lost_worker_at_once() -> None:
    server = await serve("127.0.0.1:0", worker=ScriptedWorker())
    await server.stop(0)
    async with WorkerClient(f"127.0.0.1:{server.port}") as client:
        with pytest.raises(WorkerLost, match="Nothing listens"):
            await anext(client.attach(commands()))
