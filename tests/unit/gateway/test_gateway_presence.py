"""Work for a client that may leave: it hears of the leaving at once, and whatever it does then, the client is gone."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive

from headrace.core.errors import Cancelled, InvalidRequest
from headrace.gateway.presence import while_present

WITHIN_S = 20.0
# Who waits for the message wakes in one turn of the event loop, what it cancels in the next.
TURNS = 2


class Client:
    """`leave` is what the connection's loss is to a server: `receive` has a message from then on."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}


class Turns:
    """Counts the turns of the running event loop from now on."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        if self.count < 100:
            self._loop.call_soon(self._turn)


async def _broken() -> Message:
    raise ConnectionError("nobody listens")


async def test_who_stays_gets_the_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async with asyncio.timeout(WITHIN_S):
        assert await while_present(Client().receive, work()) == 7


async def test_an_error_of_the_work_is_its_result() -> None:
    async def work() -> int:
        raise InvalidRequest("No such thing.")

    with pytest.raises(InvalidRequest):
        await while_present(Client().receive, work())


async def test_work_hears_at_once_that_its_client_has_left() -> None:
    client, begun, heard = Client(), asyncio.Event(), 0
    turns: list[Turns] = []

    async def work() -> None:
        nonlocal heard
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            heard = turns[0].count

    async with asyncio.timeout(WITHIN_S):
        waiting = asyncio.create_task(while_present(client.receive, work()))
        await begun.wait()
        turns.append(Turns())
        client.leave()
        with pytest.raises(Cancelled):
            await waiting
    assert 0 < heard <= TURNS


def _returns() -> int:
    return 7


def _fails() -> int:
    raise InvalidRequest("No such thing.")


@pytest.mark.parametrize("last", [_returns, _fails])
async def test_who_left_is_gone_however_the_work_ends(last: Callable[[], int]) -> None:
    client, begun, ended = Client(), asyncio.Event(), asyncio.Event()

    async def work() -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.set()
        return last()

    async with asyncio.timeout(WITHIN_S):
        waiting = asyncio.create_task(while_present(client.receive, work()))
        await begun.wait()
        client.leave()
        with pytest.raises(Cancelled):
            await waiting
    assert ended.is_set(), "it returned before the work had ended"


async def test_a_connection_that_cannot_be_heard_is_gone() -> None:
    receive: Receive = _broken
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(Cancelled):
            await while_present(receive, asyncio.Event().wait())


async def test_the_work_ends_with_who_waits_for_it() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(WITHIN_S):
        waiting = asyncio.create_task(while_present(Client().receive, work()))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert ended.is_set()
