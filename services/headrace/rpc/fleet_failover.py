"""FailoverFleet: `Fleet` over several routers. Any one speaks for the fleet; each knows only its own requests.

A worker is there if any router has it attached: each attaches on its own, and may be about to.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from headrace.core.errors import DeadlineExceeded, NotFound, RouterLost
from headrace.core.fleet import FleetStatus, RefusedWorker, WorkerRef, WorkerState
from headrace.core.route import Explanation
from headrace.rpc.contracts import Fleet
from headrace.rpc.routers import Door, Routers
from headrace.rpc.tries import joined, names

T = TypeVar("T")


class FailoverFleet(Fleet):
    """Asks routers that answer. Raises RouterLost if none does. late_s: after which a router's view of the fleet is
    waited for no longer if another is ready: one that stands still must not make a gateway look unready."""

    def __init__(self, routers: Routers, late_s: float = 0.5) -> None:
        self._routers = routers
        self._late_s = late_s

    async def status(self) -> FleetStatus:
        """As one router sees it that could answer a request now, else as any does; with the workers and the requests of
        all that answered."""
        views = await self._views()
        if not views:
            raise self._routers.none()
        speaker = next((view for view in views if view.ready), views[0])
        return replace(
            speaker,
            workers=merged(view.workers for view in views),
            requests_running=sum(view.requests_running for view in views),
            requests_waiting=sum(view.requests_waiting for view in views),
            refused=refused_by_any(view.refused for view in views),
        )

    async def _views(self) -> list[FleetStatus]:
        """What the routers say, in their order."""
        asked = [asyncio.create_task(self._view(door), name="ask for status") for door in self._routers.answering()]
        if not asked:
            return []
        try:
            await asyncio.wait(asked, timeout=self._late_s)
            while not any(view.ready for view in _told(asked)) and (late := [one for one in asked if not one.done()]):
                await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
            return _told(asked)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.wait(asked)

    async def _view(self, door: Door) -> FleetStatus | None:
        return await self._of(door, lambda fleet: fleet.status())

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
        """All tries of the request that a router which answers still knows, as one. Raises RouterLost where none does
        and one that serves gave no answer: it may know the request."""
        doors = self._routers.answering()
        if not doors:
            raise self._routers.none()
        told = await asyncio.gather(*(self._told(doors, name) for name in names(request)))
        known = ([found for found in answers if isinstance(found, Explanation)] for answers in told)
        if tries := [found[0] for found in known if found]:
            return joined(request, tries)
        silent = [door.address for door, *answers in zip(doors, *told, strict=True) if None in answers]
        if silent:
            where = ", ".join(silent)
            raise RouterLost(
                f"The router at {where} may know request {request!r} and did not answer.", retry_after_s=1.0
            )
        raise NotFound(f"Request {request!r} is not among the last ones of any router that answers.")

    async def _told(self, doors: tuple[Door, ...], name: str) -> list[Explanation | NotFound | None]:
        """What each router says of a try; None if it says nothing."""
        return list(await asyncio.gather(*(self._known(door, name) for door in doors)))

    async def _known(self, door: Door, name: str) -> Explanation | NotFound | None:
        try:
            return await self._of(door, lambda fleet: fleet.explain(name))
        except NotFound as unknown:
            return unknown

    async def _of(self, door: Door, ask: Callable[[Fleet], Awaitable[T]]) -> T | None:
        """A router's answer; None if there comes none."""
        try:
            async with self._routers.using(door):
                return await ask(door.fleet)
        except (RouterLost, DeadlineExceeded):
            self._routers.lost(door)
            return None


def merged(views: Iterable[tuple[WorkerState, ...]]) -> tuple[WorkerState, ...]:
    """Each worker as the first router sees it that has it attached, else as the first that knows it."""
    seen: dict[WorkerRef, WorkerState] = {}
    for state in (state for view in views for state in view):
        known = seen.setdefault(state.info.ref, state)
        if state.attached and not known.attached:
            seen[state.info.ref] = state
    return tuple(seen[ref] for ref in sorted(seen))


def refused_by_any(views: Iterable[tuple[RefusedWorker, ...]]) -> tuple[RefusedWorker, ...]:
    """Each worker once, as the first router says that refuses it."""
    seen: dict[WorkerRef, RefusedWorker] = {}
    for one in (one for view in views for one in view):
        seen.setdefault(one.info.ref, one)
    return tuple(seen[ref] for ref in sorted(seen))


def _told(asked: "list[asyncio.Task[FleetStatus | None]]") -> list[FleetStatus]:
    return [view for one in asked if one.done() and (view := one.result()) is not None]
