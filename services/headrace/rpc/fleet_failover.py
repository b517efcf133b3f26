"""FailoverFleet: `Fleet` over several routers. Any one speaks for the fleet; each knows only its own requests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.core.errors import DeadlineExceeded, NotFound, RouterLost
from headrace.core.fleet import FleetStatus, WorkerState
from headrace.core.route import Explanation
from headrace.rpc.contracts import Fleet
from headrace.rpc.routers import Door, Routers
from headrace.rpc.tries import joined, names

T = TypeVar("T")


class FailoverFleet(Fleet):
    """Asks routers that answer. Raises RouterLost if none does."""

    def __init__(self, routers: Routers) -> None:
        self._routers = routers

    async def status(self) -> FleetStatus:
        """As one router sees it that could answer a request now; else as any does."""
        seen: FleetStatus | None = None
        for door in self._routers.answering():
            status = await self._of(door, lambda fleet: fleet.status())
            if status is not None and status.ready:
                return status
            seen = seen or status
        if seen is None:
            raise self._routers.none()
        return seen

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        """By a router that has the worker attached; once more for one that leaves already changes nothing."""
        unknown: NotFound | None = None
        for door in self._routers.answering():
            try:
                state = await self._of(door, lambda fleet: fleet.drain(worker, grace_s))
            except NotFound as error:
                unknown = error
            else:
                if state is not None:
                    return state
        raise unknown or self._routers.none()

    async def metrics(self) -> str:
        """One router's, the same one for as long as it answers: counters of two would be taken for resets."""
        for door in self._routers.answering():
            if (text := await self._of(door, lambda fleet: fleet.metrics())) is not None:
                return text
        raise self._routers.none()

    async def explain(self, request: str) -> Explanation:
        """All tries of the request that a router which answers still knows, as one."""
        doors = self._routers.answering()
        if not doors:
            raise self._routers.none()
        found = await asyncio.gather(*(self._explained(doors, name) for name in names(request)))
        tries = [explanation for explanation in found if explanation is not None]
        if not tries:
            raise NotFound(f"Request {request!r} is not among the last ones of any router that answers.")
        return joined(request, tries)

    async def _explained(self, doors: tuple[Door, ...], name: str) -> Explanation | None:
        answers = await asyncio.gather(*(self._known(door, name) for door in doors))
        return next((answer for answer in answers if answer is not None), None)

    async def _known(self, door: Door, name: str) -> Explanation | None:
        try:
            return await self._of(door, lambda fleet: fleet.explain(name))
        except NotFound:
            return None

    async def _of(self, door: Door, ask: Callable[[Fleet], Awaitable[T]]) -> T | None:
        """A router's answer; None if there comes none."""
        try:
            async with self._routers.using(door):
                return await ask(door.fleet)
        except (RouterLost, DeadlineExceeded):
            self._routers.lost(door)
            return None
