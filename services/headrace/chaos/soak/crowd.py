"""The crowd: clients that ask one request after another, some of which leave before they have their answer.

Owns how many ask at once. What they heard is judged by `verdict`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from headrace.chaos.client import Heard, ask
from headrace.chaos.mix import Ask, salted
from headrace.chaos.soak.doors import Doors
from headrace.chaos.soak.plan import Turn


@dataclass(frozen=True, slots=True)
class Done:
    """A turn that is over. broken: its door ended while it was asked there."""

    turn: Turn
    request: str
    heard: Heard
    broken: bool


class Begun:
    """How many requests of a lap have begun, for whoever waits for the next ones."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Condition()

    async def another(self) -> int:
        """Returns how many had begun before."""
        async with self._changed:
            self._count += 1
            self._changed.notify_all()
            return self._count - 1

    async def until(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._count >= count)


class Crowd:
    """clients: how many ask at once. run: a word that no other run has. within_s: the longest that one waits."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        doors: Doors,
        asks: Sequence[Ask],
        *,
        clients: int,
        run: str,
        within_s: float,
    ) -> None:
        self._client = client
        self._doors = doors
        self._asks: Mapping[str, Ask] = {one.name: one for one in asks}
        self._clients = clients
        self._run = run
        self._within_s = within_s

    async def serve(self, turns: Sequence[Turn], begun: Begun, word: str) -> list[Done]:
        """All turns, each taken by whoever is free. word: of the names of these requests."""
        done: list[Done] = []
        left = iter(turns)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._take_turns(left, begun, word, done))
        return done

    async def _take_turns(self, turns: Iterable[Turn], begun: Begun, word: str, done: list[Done]) -> None:
        for turn in turns:
            number = await begun.another()
            done.append(await self._ask(turn, f"{self._run}-{word}-{number}"))

    async def _ask(self, turn: Turn, request: str) -> Done:
        door = self._doors.pick(turn.door)
        breaks = self._doors.breaks(door.name)
        question = salted(self._asks[turn.ask], f"{self._run}-{turn.salt}")
        heard = await ask(self._client, door.url, question, request, self._within_s, leave=turn.leave)
        return Done(turn, request, heard, broken=self._doors.breaks(door.name) != breaks)
