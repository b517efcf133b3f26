"""Waiting for a frontend to be ready: asked over real HTTP, at whatever address it has at the time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.bootstrap.readiness import until_ready

NOT_YET, READY = b"503 Service Unavailable", b"200 OK"


@asynccontextmanager
async def frontend(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives these answers in turn, the last one again and again: its URL, and the requests so far."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        status = answers[min(len(asked), len(answers)) - 1]
        body = b"no worker is attached"
        length = str(len(body)).encode()
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: " + length + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_it_asks_until_the_cluster_is_ready() -> None:
    async with frontend(NOT_YET, NOT_YET, READY) as (url, asked):
        assert await until_ready(lambda: url, 30.0) == ""
    assert asked == [b"GET /ready HTTP/1.1"] * 3


async def test_what_stands_in_the_way_is_said_once_the_time_is_over() -> None:
    async with frontend(NOT_YET) as (url, _):
        assert await until_ready(lambda: url, 0.0) == "no worker is attached"


async def test_a_frontend_that_is_away_is_an_obstacle_and_no_error() -> None:
    async with frontend(READY) as (url, _):
        pass
    said = await until_ready(lambda: url, 0.0)
    assert said.startswith(f"{url} does not answer: ")
    assert len(said) > len(f"{url} does not answer: ")


async def test_a_frontend_that_was_started_again_elsewhere_counts() -> None:
    async with frontend(NOT_YET) as (old, _), frontend(READY) as (new, _):
        assert await until_ready(_in_turn(old, new), 30.0) == ""


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with frontend(READY) as (url, _):
        assert await until_ready(lambda: url, 0.0) == ""


def _in_turn(*urls: str) -> Callable[[], str]:
    left = list(urls)
    return lambda: left.pop(0) if len(left) > 1 else left[0]
