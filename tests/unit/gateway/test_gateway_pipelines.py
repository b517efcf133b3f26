"""Clients that send requests ahead: each is answered in its turn, and one that leaves is gone all the same."""

import asyncio
import json

import httpx
import pytest
from gateway_harness import CHAT, Gateway, chat, running
from scripted_inference import ScriptedInference

WITHIN_S = 10.0
BODY = json.dumps(chat()).encode()
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
REQUEST = HEAD.encode() + BODY
AHEAD = {"none": b"", "half a head": REQUEST[:20], "one": REQUEST, "three": REQUEST * 3}


async def _asking(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", gateway.server.port)


async def _heard(gateway: Gateway) -> None:
    """The gateway has read all that was sent to it on other connections before."""
    assert (await gateway.http.get("/health")).status_code == httpx.codes.OK


@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD.keys())
async def test_one_who_leaves_is_gone_whatever_it_sent_ahead(ahead: bytes) -> None:
    inference = ScriptedInference(["Par", asyncio.Event()])
    async with asyncio.timeout(WITHIN_S), running(inference) as gateway:
        _, writer = await _asking(gateway)
        writer.write(REQUEST)
        life = await inference.nth(1)
        writer.write(ahead)
        await _heard(gateway)
        writer.close()
        await life.aborted.wait()


async def test_requests_sent_ahead_are_answered_in_turn() -> None:
    go = asyncio.Event()
    inference = ScriptedInference(["Par", go, "is"])
    async with asyncio.timeout(WITHIN_S), running(inference) as gateway:
        reader, writer = await _asking(gateway)
        writer.write(REQUEST)
        await inference.nth(1)
        writer.write(REQUEST * 2)
        await _heard(gateway)
        go.set()
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            assert b"Paris" in await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
