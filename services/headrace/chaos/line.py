"""Line: one worker's connection, as the harness has it: orders out, each answered, and what is heard in between.

Owns the order of answers and which news are of an order that is over. It knows no other workers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from headrace.chaos.messages import (
    LENGTH,
    Advertise,
    Arrived,
    Disarm,
    Held,
    Hold,
    LetGo,
    News,
    Obeyed,
    Opened,
    Order,
    Release,
    Struck,
    WireFault,
    pack,
    unpack,
)
from headrace.core.errors import DeadlineExceeded, WorkerLost

_ORDER_S = 5.0
_GREETING_S = 5.0
# What was heard before such an order was obeyed is of a former one.
_OUTDATED: dict[type[Order], tuple[type[News], ...]] = {
    Hold: (Held, LetGo),
    WireFault: (Struck,),
    Disarm: (Held, LetGo, Struck),
    Release: (),
}

Heard = TypeVar("Heard", Held, LetGo, Struck)


class Line:
    """Used on one event loop. Something is heard only while somebody runs `attend`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: Arrived) -> None:
        self.who = who
        self._reader = reader
        self._writer = writer
        self._unanswered: deque[tuple[Order, asyncio.Future[None]]] = deque()
        self._heard: dict[type[News], asyncio.Queue[Any]] = {kind: asyncio.Queue() for kind in (Held, LetGo, Struck)}
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def answer(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Self:
        """A line with the worker that says who it is. Raises OSError, EOFError, TimeoutError or ValueError."""
        async with asyncio.timeout(_GREETING_S):
            who = await _read(reader)
        if not isinstance(who, Arrived):
            raise ValueError(f"a worker began with {type(who).__name__}")
        return cls(reader, writer, who)

    async def attend(self, advertise: Callable[[Opened], Awaitable[str]]) -> None:
        """Hear the worker until it leaves. advertise: what its link is to call its address.

        Raises OSError, EOFError or ValueError: it always ends so."""
        try:
            while True:
                news = await _read(self._reader)
                if isinstance(news, Opened):
                    self._say(Advertise(await advertise(news)))
                elif isinstance(news, Obeyed):
                    self._obeyed()
                elif isinstance(news, Held | LetGo | Struck):
                    self._heard[type(news)].put_nowait(news)
        finally:
            self._gone.set_result(None)

    async def order(self, order: Order) -> None:
        """Returns when it was obeyed. Raises WorkerLost or DeadlineExceeded."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unanswered.append((order, answer))
        self._say(order)
        await self._either(answer, _ORDER_S, f"obey {type(order).__name__}")

    async def hear(self, kind: type[Heard], timeout_s: float) -> Heard:
        """The next news of that kind. Raises WorkerLost or DeadlineExceeded."""
        heard: Heard = await self._either(
            asyncio.ensure_future(self._heard[kind].get()), timeout_s, f"say {kind.__name__}"
        )
        return heard

    async def _either(self, wanted: asyncio.Future[Any], timeout_s: float, what: str) -> Any:
        """The result of `wanted`, unless the worker leaves or the time ends before."""
        try:
            await asyncio.wait({wanted, self._gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
        finally:
            wanted.cancel()
        if self._gone.done():
            raise WorkerLost(f"Worker {self.who.worker} left before it could {what}.")
        raise DeadlineExceeded(f"Worker {self.who.worker} did not {what} within {timeout_s:g} s.")

    def _obeyed(self) -> None:
        order, answer = self._unanswered.popleft()
        for kind in _OUTDATED[type(order)]:
            while not self._heard[kind].empty():
                self._heard[kind].get_nowait()
        if not answer.done():
            answer.set_result(None)

    def _say(self, order: Order) -> None:
        self._writer.write(pack(order))


async def _read(reader: asyncio.StreamReader) -> Order | News:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return unpack(await reader.readexactly(length))
