"""FailoverInference: `Inference` over several routers. An answer whose router is lost goes on through another one.

Owns what has been heard of each answer, and the decision to try again. It knows routers only by whose turn it is.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import structlog

from headrace.core.errors import DeadlineExceeded, InternalError, RouterLost
from headrace.core.generation import Chunk, GenerateRequest, ModelCard, Prompt, Tokenized
from headrace.rpc.contracts import Inference
from headrace.rpc.routers import Door, Routers
from headrace.rpc.tries import MAX_TRIES, named

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds to wait for a router that serves. found_s: for a request that comes. comeback_s: for one that was with
    a router that is lost: the same may come back, and what was computed for it is still cached."""

    found_s: float = 2.0
    comeback_s: float = 10.0


class Progress:
    """One answer on its way through one router after another. now: seconds of a clock that does not go back."""

    def __init__(self, request: GenerateRequest, now: float) -> None:
        self.request = request
        self.number = 1
        self._deadline = now + request.timeout_s
        self._last: Chunk | None = None

    @property
    def complete(self) -> bool:
        return self._last is not None and self._last.finish_reason is not None

    @property
    def position(self) -> int | None:
        """The next token's place in the answer; None if only the caller of a resumed answer can know it."""
        if self._last is not None:
            return self._last.position + len(self._last.token_ids)
        return None if self.request.resume else 0

    def left(self, now: float) -> float:
        """What is left of the request's time. Raises DeadlineExceeded if nothing is."""
        if now >= self._deadline:
            raise DeadlineExceeded(f"The answer was not complete after {self.request.timeout_s:g} s.")
        return self._deadline - now

    def wanted(self, now: float) -> GenerateRequest:
        """What is to be asked of a router: the answer, from where it stands. Raises DeadlineExceeded."""
        resume = self.request.resume if self._last is None else self._last.resume.encode()
        id = named(self.request.id, self.number)
        return replace(self.request, id=id, timeout_s=self.left(now), resume=resume)

    def take(self, chunk: Chunk) -> bool:
        """Whether the caller has yet to hear it. Raises InternalError if something between is missing."""
        if (place := self.position) is not None and chunk.position != place:
            if chunk.position + len(chunk.token_ids) <= place and chunk.finish_reason is None:
                return False
            raise InternalError(f"A router went on at token {chunk.position} of an answer that stands at {place}.")
        self._last = chunk
        return True


class FailoverInference(Inference):
    """Errors of a request itself are its end. Only RouterLost makes another try: no router has refused it then."""

    def __init__(self, routers: Routers, waits: Waits = Waits()) -> None:
        self._routers = routers
        self._waits = waits

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """See `Inference`. Raises RouterLost after MAX_TRIES tries, or if no router serves for too long."""
        now = asyncio.get_running_loop().time
        progress = Progress(request, now())
        door = await self._routers.turn(min(self._waits.found_s, request.timeout_s))
        while True:
            try:
                async with self._routers.using(door), aclosing(_asked(door, progress.wanted(now()))) as chunks:
                    async for chunk in chunks:
                        if progress.take(chunk):
                            yield chunk
                return
            except RouterLost as loss:
                self._routers.lost(door)
                if progress.complete:
                    return
                door = await self._elsewhere(progress, loss)

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        return await self._ask(lambda router: router.tokenize(model, prompt))

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        return await self._ask(lambda router: router.detokenize(model, token_ids))

    async def list_models(self) -> tuple[ModelCard, ...]:
        return await self._ask(lambda router: router.list_models())

    async def _elsewhere(self, progress: Progress, loss: RouterLost) -> Door:
        """The router for the next try. Raises RouterLost if there are no more, or nobody for it; DeadlineExceeded."""
        if progress.number == MAX_TRIES:
            raise loss
        left = progress.left(asyncio.get_running_loop().time())
        try:
            door = await self._routers.turn(min(self._waits.comeback_s, left))
        except RouterLost as none:
            raise RouterLost(f"{loss.message} {none.message}", remedy="Try again.", retry_after_s=1.0) from loss
        progress.number += 1
        log.info(
            "request.moved",
            request=progress.request.id,
            to=door.address,
            number=progress.number,
            tokens=progress.position,
            reason=loss.message,
        )
        return door

    async def _ask(self, ask: Callable[[Inference], Awaitable[T]]) -> T:
        """The answer to a question that can be asked twice."""
        for number in range(1, MAX_TRIES + 1):
            door = await self._routers.turn(self._waits.found_s)
            try:
                async with self._routers.using(door):
                    return await ask(door.inference)
            except RouterLost:
                self._routers.lost(door)
                if number == MAX_TRIES:
                    raise
        raise AssertionError("the last try returns or raises")


def _asked(door: Door, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
    # The contract's iterator can be closed; its type does not say so.
    return cast("AsyncGenerator[Chunk, None]", door.inference.generate(request))
