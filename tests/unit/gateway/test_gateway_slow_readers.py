"""Clients that do not read: their answers have a time, and their connections end with it."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fixtures.eventually import eventually
from gateway_harness import CHAT, Gateway, chat, running
from scripted_inference import ScriptedInference
from structlog.testing import capture_logs

# Larger than what the sockets of both ends hold, so that the gateway has to wait for its client.
PIECE = "x" * 2**20
MANY = [PIECE] * 32
TIMEOUT_S = 0.2
AFTER_S = 2.0


@contextmanager
def asking(gateway: Gateway) -> Iterator[socket.socket]:
    """A client that has sent its request for a stream and reads what the test reads."""
    body = json.dumps(chat(stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        client.settimeout(10)
        client.connect(("127.0.0.1", gateway.server.port))
        client.sendall(head.encode() + body)
        yield client


def everything(client: socket.socket) -> bytes:
    said = b""
    while piece := client.recv(2**20):
        said += piece
    return said


async def test_one_who_never_reads_is_cut_off_and_leaves_nothing() -> None:
    inference = ScriptedInference(MANY)
    loop = asyncio.get_running_loop()
    async with running(inference, request_timeout_s=TIMEOUT_S) as gateway:
        with capture_logs() as logs, asking(gateway) as client:
            began = loop.time()
            life = await inference.nth(1)
            await asyncio.wait_for(life.aborted.wait(), 10)
            # The wait above bounds it: a busy machine is late, and nobody is cut off early.
            assert loop.time() - began >= TIMEOUT_S + AFTER_S
            await eventually(lambda: any(entry["event"] == "request.broken" for entry in logs))
            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(everything, client)
        assert [entry["outcome"] for entry in logs if entry["event"] == "request.broken"] == ["cut_off"]
        # The connection is not waited for either.
        async with asyncio.timeout(1):
            await gateway.server.stop(10)


async def test_one_who_reads_again_in_time_hears_everything() -> None:
    inference = ScriptedInference(MANY)
    async with running(inference, request_timeout_s=60.0) as gateway:
        with asking(gateway) as client:
            life = await inference.nth(1)
            await eventually(lambda: life.produced > 1)
            reading = asyncio.create_task(asyncio.to_thread(everything, client))
            await eventually(lambda: life.finished)
            await gateway.server.stop(10)
            said = await reading
    assert said.count(b"x") > len(MANY) * len(PIECE) - 1
    assert b"data: [DONE]\n\n" in said


async def test_one_who_reads_is_told_if_the_answer_does_not_end_in_time() -> None:
    """A router ends a request at its deadline. Should nobody, the gateway does."""
    inference = ScriptedInference(["Par", asyncio.Event(), "is"])
    async with running(inference, request_timeout_s=TIMEOUT_S) as gateway:
        async with gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert inference.lives[0].aborted.is_set()
