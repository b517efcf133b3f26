"""The generations behind one HTTP request, run together as one stream of chunks.

Owns the slots they take and that all of them are closed, however the request ends. Knows no HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from headrace.core.errors import InternalError
from headrace.core.generation import Chunk, GenerateRequest
from headrace.gateway.limits import Slots
from headrace.rpc.contracts import Inference

_BUFFERED_PER_CHOICE = 4


class Generations:
    """Starts generations, within the gateway's limit."""

    def __init__(self, inference: Inference, slots: Slots) -> None:
        self._inference = inference
        self._slots = slots

    async def chunks(self, requests: tuple[GenerateRequest, ...]) -> AsyncGenerator[Chunk, None]:
        """Chunks of all `requests`, each request one choice, numbered in order; every choice ends with a
        finish_reason and usage. Raises HeadraceError; closing the iterator closes every generation."""
        with self._slots.hold(len(requests)):
            streams = [_checked(self._inference, request) for request in requests]
            async with aclosing(streams[0] if len(streams) == 1 else _merged(streams)) as chunks:
                async for chunk in chunks:
                    yield chunk


async def _checked(inference: Inference, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
    """One generation's chunks. Raises InternalError if no chunk ends them."""
    ended = False
    # The contract's iterator can be closed; its type does not say so.
    async with aclosing(cast(AsyncGenerator[Chunk, None], inference.generate(request))) as chunks:
        async for chunk in chunks:
            ended = ended or (chunk.finish_reason is not None and chunk.usage is not None)
            yield chunk
    if not ended:
        raise InternalError("A generation ended without a finish_reason and usage.")


async def _merged(streams: list[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[Chunk, None]:
    """All streams at once, each under its index as choice. The first error ends all of them."""
    queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(len(streams) * _BUFFERED_PER_CHOICE)
    tasks = [asyncio.create_task(_feed(index, stream, queue)) for index, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(
    choice: int, stream: AsyncGenerator[Chunk, None], queue: asyncio.Queue[Chunk | Exception | None]
) -> None:
    try:
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                await queue.put(replace(chunk, choice=choice))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
