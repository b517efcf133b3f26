"""What tells a lost router from a refusal: every way in which a real server goes, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

import pytest
from scripted_router import ScriptedRouter, chunk

from headrace.core.errors import HeadraceError, InvalidRequest, Overloaded, RouterLost, Unavailable, WorkerLost
from headrace.core.generation import Chunk, GenerateRequest, TextPrompt
from headrace.rpc.clients import FleetClient, InferenceClient, WorkerClient
from headrace.rpc.server import Server, serve

REQUEST = GenerateRequest("r", "m", TextPrompt("Hi"))


async def stream(client: InferenceClient) -> tuple[AsyncGenerator[Chunk, None], Chunk]:
    """A generation that has begun, and its first chunk."""
    chunks = cast("AsyncGenerator[Chunk, None]", client.generate(REQUEST))
    return chunks, await anext(chunks)


async def served(router: ScriptedRouter) -> tuple[Server, str]:
    server = await serve("127.0.0.1:0", inference=router, fleet=router)
    await server.set_ready(True)
    return server, f"127.0.0.1:{server.port}"


async def test_where_nobody_listens_is_no_router() -> None:
    server, address = await served(ScriptedRouter("a"))
    await server.stop(0.0)
    async with InferenceClient(address) as inference, FleetClient(address) as fleet:
        with pytest.raises(RouterLost, match=address):
            await anext(inference.generate(REQUEST))
        with pytest.raises(RouterLost, match=address):
            await fleet.status()


async def test_a_server_that_stops_under_a_stream_is_lost() -> None:
    server, address = await served(ScriptedRouter("a", [[chunk(0), asyncio.Event()]]))
    async with InferenceClient(address) as inference:
        chunks, first = await stream(inference)
        assert first.token_ids == chunk(0).token_ids
        stopping = asyncio.create_task(server.stop(0.0))
        with pytest.raises(RouterLost):
            await anext(chunks)
        await stopping


@pytest.mark.parametrize("kind", [Unavailable, WorkerLost, Overloaded, InvalidRequest])
async def test_what_a_router_says_is_no_loss(kind: type[HeadraceError]) -> None:
    said = kind("No.")
    server, address = await served(ScriptedRouter("a", [[chunk(0), said]]))
    try:
        async with InferenceClient(address) as inference:
            chunks, _ = await stream(inference)
            with pytest.raises(kind) as told:
                await anext(chunks)
            assert type(told.value) is kind
    finally:
        await server.stop(0.0)


async def test_a_router_that_says_that_it_stops_is_lost() -> None:
    server, address = await served(ScriptedRouter("a", [[chunk(0), RouterLost("The router is stopping.")]]))
    try:
        async with InferenceClient(address) as inference:
            chunks, _ = await stream(inference)
            with pytest.raises(RouterLost, match="is stopping"):
                await anext(chunks)
    finally:
        await server.stop(0.0)


async def test_a_worker_that_is_gone_is_no_router() -> None:
    server, address = await served(ScriptedRouter("a"))
    await server.stop(0.0)
    async with WorkerClient(address) as worker:
        with pytest.raises(Unavailable) as told:
            await worker.metrics()
        assert type(told.value) is Unavailable


async def test_the_watch_follows_a_server_to_its_end() -> None:
    server, address = await served(ScriptedRouter("a"))
    async with InferenceClient(address) as inference, asyncio.timeout(10):
        words: AsyncIterator[bool] = inference.serving()
        assert await anext(words)
        await server.set_ready(False)
        assert not await anext(words)
        await server.set_ready(True)
        assert await anext(words)
        stopping = asyncio.create_task(server.stop(0.0))
        assert not await anext(words)
        with pytest.raises((RouterLost, StopAsyncIteration)):
            await anext(words)
        await stopping
