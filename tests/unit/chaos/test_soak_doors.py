"""Doors and the crowd before them: nobody is sent to one that is shut, and who was cut by its end is known."""

import asyncio
from collections.abc import AsyncIterator

import httpx

from headrace.chaos.client import Leave
from headrace.chaos.members import NAMES, members
from headrace.chaos.mix import mix
from headrace.chaos.soak.crowd import Begun, Crowd
from headrace.chaos.soak.doors import Doors
from headrace.chaos.soak.plan import Turn

EVERYONE = members({name: name for name in NAMES}, [9000, 8000] * len(NAMES))
WITHIN_S = 5.0


def test_a_shut_door_is_not_picked_until_it_is_open_again() -> None:
    doors = Doors(EVERYONE)
    assert doors.pick("router-1").name == "router-1"
    doors.close("router-1", breaking=True)
    assert doors.pick("router-1").name != "router-1"
    doors.open("router-1")
    assert doors.pick("router-1").name == "router-1"


def test_only_an_end_without_asking_breaks_connections() -> None:
    doors = Doors(EVERYONE)
    doors.close("router-1", breaking=False)
    assert doors.breaks("router-1") == 0
    doors.close("router-1", breaking=True)
    doors.close("decode-1", breaking=True)
    assert (doors.breaks("router-1"), doors.breaks("decode-1"), doors.breaks("gateway")) == (1, 0, 0)


class Endless(httpx.AsyncByteStream):
    """An answer that goes on until whoever hears it leaves."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
            await asyncio.sleep(0)


async def test_the_crowd_takes_every_turn_once_and_leaves_when_it_is_told_to() -> None:
    doors, asked = Doors(EVERYONE), []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        await request.extensions["trace"]("connection.connect_tcp.complete", {})
        if request.url.host == "router-1":
            doors.close("router-1", breaking=True)
        return httpx.Response(200, stream=Endless())

    begun = Begun()
    turns = [Turn("greedy", door, "s", Leave(events, WITHIN_S)) for door, events in (("gateway", 3), ("router-1", 5))]
    turns.append(Turn("greedy", "gateway", "s", Leave(10**9, 0.01)))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        crowd = Crowd(client, doors, mix("m"), clients=2, run="run", within_s=WITHIN_S)
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            group.create_task(begun.until(3))
            serving = group.create_task(crowd.serve(turns, begun, "lap"))
    done = {one.turn: one for one in serving.result()}
    assert len(done) == len(asked) == 3
    assert all(one.heard.left and not one.heard.late for one in done.values())
    assert [done[turn].heard.events for turn in turns[:2]] == [3, 5]
    assert [done[turn].broken for turn in turns] == [False, True, False]
    assert len({request.headers["x-request-id"] for request in asked}) == 3
