"""Streams among many, with clients that are slow, gone, or waiting."""

import asyncio
import json
import socket

import httpx
import pytest
from gateway_harness import CHAT, MODEL, Gateway, chat, running
from scripted_inference import DEADLINE_S, ScriptedInference
from structlog.testing import capture_logs

from headrace.core.errors import TransferFailed
from headrace.core.generation import TextPrompt


async def open_and_ask(gateway: Gateway, body: dict[str, object]) -> asyncio.StreamWriter:
    """Sends a request over a socket of its own and reads nothing of the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
    content = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_closes_the_generation(stream: bool) -> None:
    inference = ScriptedInference([asyncio.Event(), "never"])
    async with running(inference) as gateway:
        writer = await open_and_ask(gateway, chat(stream=stream))
        life = await inference.nth(1)
        await hang_up(writer)
        async with asyncio.timeout(DEADLINE_S):
            await life.aborted.wait()
    assert not life.finished


async def test_a_client_that_leaves_mid_stream_closes_the_generation() -> None:
    inference = ScriptedInference(["Par", asyncio.Event(), "never"])
    async with running(inference) as gateway:
        async with gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
            async for line in response.aiter_lines():
                if '"Par"' in line:
                    break
        async with asyncio.timeout(DEADLINE_S):
            await inference.lives[0].aborted.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_every_choice(stream: bool) -> None:
    inference = ScriptedInference(["Par", "is", asyncio.Event(), "never"])
    async with running(inference) as gateway:
        writer = await open_and_ask(gateway, chat(stream=stream, n=3))
        await inference.nth(3)
        await hang_up(writer)
        async with asyncio.timeout(DEADLINE_S):
            for life in inference.lives:
                await life.aborted.wait()


async def test_one_failed_choice_ends_the_others() -> None:
    never = asyncio.Event()
    scripts = iter([["a", "b", never, "c"], ["a", TransferFailed("Pages did not verify.")]])
    inference = ScriptedInference(lambda request: next(scripts))
    async with running(inference) as gateway:
        response = await gateway.http.post(CHAT, json=chat(n=2))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "transfer_failed"
    assert inference.lives[0].aborted.is_set()


async def test_choices_wait_for_the_pages_of_the_first() -> None:
    """1. One goes ahead. 2. With its second token the others start. 3. Another prompt waits for nobody."""
    second, rest = asyncio.Event(), asyncio.Event()
    inference = ScriptedInference(lambda request: ["a", second, "b", rest, "c"])
    async with running(inference) as gateway:
        body = {"model": MODEL, "prompt": ["one", "other"], "n": 2}
        asked = asyncio.create_task(gateway.http.post("/v1/completions", json=body))
        await inference.nth(2)
        assert {life.request.prompt for life in inference.lives} == {TextPrompt("one"), TextPrompt("other")}
        second.set()
        await inference.nth(4)
        rest.set()
        answer = await asked
    assert [choice["text"] for choice in answer.json()["choices"]] == ["abc"] * 4


@pytest.mark.parametrize("script", [["whole"], [TransferFailed("Pages did not verify.")]], ids=["ended", "failed"])
async def test_a_first_choice_that_ends_early_holds_up_nobody(script: list[str | Exception]) -> None:
    inference = ScriptedInference(script)
    async with running(inference) as gateway:
        answer = await gateway.http.post(CHAT, json=chat(n=3))
    assert answer.status_code == (200 if script == ["whole"] else 503)
    assert len(inference.lives) == 3 or script != ["whole"]


async def test_an_error_inside_a_stream_ends_it_without_done() -> None:
    async with running(ScriptedInference(["Par", TransferFailed("Pages did not verify.")])) as gateway:
        response = await gateway.http.post(CHAT, json=chat(stream=True))
    events = response.text.strip().split("\n\n")
    assert response.status_code == 200
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "transfer_failed"
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_crash_tells_the_client_nothing_of_the_inside(stream: bool) -> None:
    async with running(ScriptedInference([ValueError("inner detail")])) as gateway:
        with capture_logs() as logs:
            response = await gateway.http.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "inner detail" not in response.text
    assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1


async def test_a_generation_that_just_stops_is_an_error() -> None:
    async with running(ScriptedInference([])) as gateway:
        response = await gateway.http.post(CHAT, json=chat())
    assert response.status_code == 500


async def test_waiting_streams_carry_comments() -> None:
    """1. Silence: the status and a comment come. 2. The answer follows. 3. An error then is an event, not a status."""
    first = asyncio.Event()
    inference = ScriptedInference([first, "Paris"])
    async with (
        running(inference, keepalive_s=0.02) as gateway,
        gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": keepalive"
        assert response.status_code == 200
        first.set()
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]
    assert any('"Paris"' in line for line in rest)


async def test_an_error_after_a_comment_is_an_event() -> None:
    first = asyncio.Event()
    inference = ScriptedInference([first, TransferFailed("Pages did not verify.")])
    async with (
        running(inference, keepalive_s=0.02) as gateway,
        gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": keepalive"
        first.set()
        rest = [line async for line in lines if line.startswith("data:")]
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "transfer_failed"


async def test_an_event_is_one_line_to_clients_that_split_it_at_every_line_end_of_texts() -> None:
    text = "".join(map(chr, range(0x20))) + "\x85 \u2028 \u2029 é \x7f"
    assert len(text.splitlines()) > 10
    inference = ScriptedInference([text])
    async with (
        running(inference) as gateway,
        gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response,
    ):
        chunks = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]) == text


async def test_two_hundred_streams_at_once() -> None:
    """All are open before any may end, so they really are at once."""
    everyone = asyncio.Event()
    inference = ScriptedInference(lambda request: ["a", everyone, "b", request.id])

    async def one(http: httpx.AsyncClient, number: int) -> str:
        headers = {"x-request-id": f"stream-{number}"}
        async with http.stream("POST", CHAT, json=chat(stream=True), headers=headers) as response:
            chunks = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    async with running(inference) as gateway:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url, limits=limits, timeout=20.0) as http:
            streams = [asyncio.create_task(one(http, number)) for number in range(200)]
            await inference.nth(200)
            everyone.set()
            texts = await asyncio.gather(*streams)
    assert texts == [f"abstream-{number}" for number in range(200)]


async def test_a_client_that_does_not_read_stops_nobody_else() -> None:
    """1. It fills its socket and its generation is held back. 2. Others are answered. 3. It leaves: closed."""
    many = 10_000
    scripts = iter([["x" * 10_000] * many, *[["Par", "is"]] * 5])
    inference = ScriptedInference(lambda request: next(scripts))
    async with running(inference) as gateway:
        writer = await open_and_ask(gateway, chat(stream=True))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()
        life = await inference.nth(1)
        for _ in range(5):
            assert (await gateway.http.post(CHAT, json=chat())).status_code == 200
        assert life.produced < many
        writer.transport.abort()
        async with asyncio.timeout(DEADLINE_S):
            await life.aborted.wait()
    assert life.produced < many
