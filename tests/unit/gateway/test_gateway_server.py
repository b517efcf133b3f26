"""The server's life: start, taken port, stop with and without patience."""

import asyncio
import json
import signal
import socket
import time

import httpx
import pytest
from gateway_harness import CHAT, chat, running
from scripted_inference import DEADLINE_S, ScriptedFleet, ScriptedInference
from structlog.testing import capture_logs

from headrace.core.errors import StartupError
from headrace.gateway.app import build_app
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer


def server(port: int) -> GatewayServer:
    inference = ScriptedInference()
    return GatewayServer(build_app(inference, ScriptedFleet(inference), GatewayOptions()), "127.0.0.1", port)


async def test_a_taken_port_is_said_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"127\.0\.0\.1:{port}.*--port"):
            await server(port).start()


async def test_signals_stay_with_their_owner() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with running():
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_stopping_before_starting_does_nothing() -> None:
    await server(0).stop(1)


async def test_streams_finish_within_the_grace() -> None:
    """1. A stream is open. 2. Stop: no new connection. 3. The stream goes on to its end. 4. The port is free."""
    go = asyncio.Event()
    inference = ScriptedInference(["Par", go, "is"])
    async with running(inference) as gateway:
        async with gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(gateway.server.stop(10))
            await refused(gateway.server.port)
            go.set()
            rest = [line async for line in lines]
        await stopping
    assert "data: [DONE]" in rest
    assert inference.lives[0].finished
    with socket.create_server(("127.0.0.1", gateway.server.port)):
        pass


async def refused(port: int) -> None:
    """Returns when nobody listens any more: each look is a connection attempt, awaited, against a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue
            writer.close()
            await writer.wait_closed()


async def test_streams_are_cut_off_after_the_grace_and_say_so() -> None:
    inference = ScriptedInference(["Par", asyncio.Event(), "is"])
    async with running(inference) as gateway, gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
        lines = response.aiter_lines()
        await anext(lines)
        with capture_logs() as logs:
            async with asyncio.timeout(DEADLINE_S):
                await gateway.server.stop(0)
        assert [entry["outcome"] for entry in logs if entry["event"] == "request.broken"] == ["cut_off"]
        rest = [line async for line in lines if line.startswith("data: ")]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "unavailable"
    assert inference.lives[0].aborted.is_set()


async def test_whole_answers_are_cut_off_after_the_grace_with_an_error() -> None:
    inference = ScriptedInference(["Par", asyncio.Event(), "is"])
    async with running(inference) as gateway:
        asking = asyncio.create_task(gateway.http.post(CHAT, json=chat()))
        await (await inference.nth(1)).started.wait()
        async with asyncio.timeout(DEADLINE_S):
            await gateway.server.stop(0)
            answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["x-request-id"]
    assert inference.lives[0].aborted.is_set()


async def test_answers_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm on, every answer on a kept connection takes the 40 ms of a delayed acknowledgement."""
    async with running() as gateway:
        times = sorted([await timed_chat(gateway.http) for _ in range(40)])
    assert times[len(times) // 4] < 0.035


async def timed_chat(http: httpx.AsyncClient) -> float:
    began = time.perf_counter()
    assert (await http.post(CHAT, json=chat())).status_code == 200
    return time.perf_counter() - began
