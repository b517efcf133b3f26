"""The generations behind one HTTP request, run together as one stream of chunks.

Owns the slots they take and that all of them are closed, however the request ends. Knows no HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from headrace.core.errors import DeadlineExceeded, InternalError
from headrace.core.generation import Chunk, GenerateRequest, Prompt
from headrace.gateway.limits import Slots
from headrace.rpc.contracts import Inference

_BUFFERED_PER_CHOICE = 4
_LEAST_S = 0.001


class Generations:
    """Starts generations, within the gateway's limit."""

    def __init__(self, inference: Inference, slots: Slots) -> None:
        self._inference = inference
        self._slots = slots

    async def chunks(self, requests: tuple[GenerateRequest, ...]) -> AsyncGenerator[Chunk, None]:
        """Chunks of all `requests`, each request one choice, numbered in order; every choice ends with a
        finish_reason and usage. Raises HeadraceError; closing the iterator closes every generation.

        Of requests with one prompt the first goes ahead: the others start once its pages are where they find them,
        on the prefill and on the decode worker, and are shared."""
        with self._slots.hold(len(requests)):
            alone = len(requests) == 1
            stream = _checked(self._inference, requests[0]) if alone else _merged(self._inference, requests)
            async with aclosing(stream) as chunks:
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


async def _merged(inference: Inference, requests: tuple[GenerateRequest, ...]) -> AsyncGenerator[Chunk, None]:
    """All at once, each under its index as choice. The first error ends all of them."""
    queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(len(requests) * _BUFFERED_PER_CHOICE)
    ahead: dict[Prompt, asyncio.Event] = {}
    tasks = []
    for index, request in enumerate(requests):
        settled = ahead.get(request.prompt)
        leads = settled is None
        settled = ahead.setdefault(request.prompt, asyncio.Event())
        choice = _led(inference, request, settled) if leads else _following(inference, request, settled)
        tasks.append(asyncio.create_task(_feed(index, choice, queue)))
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


async def _led(inference: Inference, request: GenerateRequest, settled: asyncio.Event) -> AsyncGenerator[Chunk, None]:
    """A prompt's first generation. Its second token says that its pages have arrived where the answer is made."""
    try:
        async with aclosing(_checked(inference, request)) as chunks:
            async for chunk in chunks:
                if chunk.position + len(chunk.token_ids) > 1:
                    settled.set()
                yield chunk
    finally:
        settled.set()


async def _following(
    inference: Inference, request: GenerateRequest, settled: asyncio.Event
) -> AsyncGenerator[Chunk, None]:
    """Another generation of the prompt, in what is left of its time once the first has settled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.timeout_s
    try:
        async with asyncio.timeout_at(deadline):
            await settled.wait()
    except TimeoutError as error:
        raise DeadlineExceeded(f"The answer took longer than {request.timeout_s:g} s.") from error
    left = replace(request, timeout_s=max(deadline - loop.time(), _LEAST_S))
    async with aclosing(_checked(inference, left)) as chunks:
        async for chunk in chunks:
            yield chunk


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
