"""A router as a gateway sees it, played by a script: one try of a request after another, and what it says of itself."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from fixtures.eventually import eventually

from headrace.core.errors import NotFound, RouterLost
from headrace.core.fleet import FleetStatus, WorkerState
from headrace.core.generation import Chunk, FinishReason, GenerateRequest, ModelCard, Prompt, Tokenized, Usage
from headrace.core.resume import ResumePoint
from headrace.core.route import Explanation
from headrace.rpc.routers import Door, Pace, Routers

Step = Chunk | Exception | asyncio.Event
TOKENS = tuple(range(40, 52))
QUICK = Pace(rest_s=0.02, again_s=0.005, locate_s=0.005)


def chunk(place: int, count: int = 1, *, last: bool = False) -> Chunk:
    """Tokens `place` and following of the one answer that there is; the text of each is its number."""
    ids = TOKENS[place : place + count]
    return Chunk(
        choice=0,
        position=place,
        text="".join(f"{token} " for token in ids),
        token_ids=ids,
        resume=ResumePoint(7, bytes(8), TOKENS, place + count),
        finish_reason=FinishReason.STOP if last else None,
        usage=Usage(3, place + count, 0) if last else None,
    )


def lost(where: str) -> RouterLost:
    return RouterLost(f"The connection to {where} failed.")


@dataclass
class ScriptedRouter:
    """tries: what it does with each request that it gets, in order. asked: those requests. says: whether it serves,
    as it changes; None breaks the watch. stands: what it waits for before it tells of the fleet; stood: each time."""

    address: str
    tries: list[Sequence[Step]] = field(default_factory=list)
    asked: list[GenerateRequest] = field(default_factory=list)
    says: "asyncio.Queue[bool | None]" = field(default_factory=asyncio.Queue)
    known: dict[str, Explanation] = field(default_factory=dict)
    status_now: FleetStatus | Exception = field(default_factory=lambda: FleetStatus(True, "", (), 0, 0))
    attached: dict[str, WorkerState] = field(default_factory=dict)
    stands: asyncio.Event | None = None
    stood: list[asyncio.Event] = field(default_factory=list)
    gone: bool = False
    left: int = 0
    closed: bool = False

    def door(self) -> Door:
        return Door(self.address, self, self, self.serving, self.close)

    async def serving(self) -> AsyncGenerator[bool, None]:
        while (word := await self.says.get()) is not None:
            yield word
        raise lost(self.address)

    async def close(self) -> None:
        self.closed = True

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        self.asked.append(request)
        try:
            for step in self.tries.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        finally:
            self.left += 1

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        self._answer()
        return Tokenized((1, 2), 100)

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        self._answer()
        return self.address

    async def list_models(self) -> tuple[ModelCard, ...]:
        self._answer()
        return (ModelCard(self.address, 100, 0),)

    async def status(self) -> FleetStatus:
        self._answer()
        if self.stands is not None:
            self.stood.append(self.stands)
            await self.stands.wait()
        if isinstance(self.status_now, Exception):
            raise self.status_now
        return self.status_now

    async def explain(self, request: str) -> Explanation:
        self._answer()
        if request not in self.known:
            raise NotFound(f"{request} is not here.")
        return self.known[request]

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        self._answer()
        if worker not in self.attached:
            raise NotFound(f"{worker} is not here.")
        return replace(self.attached[worker], draining=True)

    async def metrics(self) -> str:
        self._answer()
        return self.address

    def _answer(self) -> None:
        if self.gone:
            raise lost(self.address)


@asynccontextmanager
async def gateway(*routers: ScriptedRouter, serving: bool = True, pace: Pace = QUICK) -> AsyncIterator[Routers]:
    """Before these routers, each of which has said whether it serves."""
    by_address = {router.address: router for router in routers}

    async def locate() -> tuple[str, ...]:
        return tuple(by_address)

    asked = Routers(locate, lambda address: by_address[address].door(), pace)
    await asked.start()
    for router in routers:
        router.says.put_nowait(serving)
    await eventually(lambda: all(router.says.empty() for router in routers))
    await eventually(lambda: len(asked.answering()) == (len(routers) if serving else 0))
    try:
        yield asked
    finally:
        await asked.close()
        assert all(router.closed for router in routers)
