"""One case: requests at both doors, one of them held, the blow, and everything that must hold afterwards.

Owns the order of things. What is done, asked and judged stands elsewhere.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import httpx

from headrace.chaos.cells import Cell, Target
from headrace.chaos.client import Heard, ask
from headrace.chaos.cluster import Cluster
from headrace.chaos.control import Control
from headrace.chaos.hold import (
    armed,
    disarm,
    fault_of,
    first_harmed,
    first_held,
    first_struck,
    hold_of,
    holder,
    message_fault_of,
    release,
)
from headrace.chaos.members import Kind, Member, of_kind
from headrace.chaos.mix import HELD, Ask, salted
from headrace.chaos.probes import Pair, pair_of
from headrace.chaos.proxies import Proxies
from headrace.chaos.refusals import must_be_refused, refused
from headrace.chaos.rest import silent, until_at_rest, until_whole
from headrace.chaos.strike import Blow, aimed, clear, pass_by, strike
from headrace.chaos.verdict import Counts, Judged, finished, judge, total
from headrace.core.errors import HeadraceError

# Beyond a request's own time: for a door that is frozen meanwhile.
_GRACE_S = 12.0


@dataclass(frozen=True, slots=True)
class Row:
    """What a case came to. states: requests by how they ended. seconds: of the whole case; rest_s: until all was at
    rest. broken: the cluster is not whole any more, and is to be made anew."""

    cell: Cell
    counts: Counts
    states: Mapping[str, int]
    complaints: tuple[str, ...]
    victim: str
    seconds: float
    rest_s: float
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Arena:
    """What cases are played in. references: what each request heard undisturbed. run: a word that no other run has.

    proxies: before the links; None: there are none.
    """

    cluster: Cluster
    control: Control
    client: httpx.AsyncClient
    asks: Sequence[Ask]
    references: Mapping[str, Heard]
    run: str
    proxies: Proxies | None = None


@dataclass(slots=True)
class _Course:
    """A case under way. doors: by name of the request; the held one stands under its name in the mix."""

    arena: Arena
    cell: Cell
    held: str
    doors: Mapping[str, Member]
    victim: str = ""
    blow: Blow | None = None
    counts: Counts = field(default_factory=Counts)
    complaints: list[str] = field(default_factory=list)

    @property
    def salt(self) -> str:
        return f"{self.arena.run}-{self.cell.id}"

    def request_id(self, name: str) -> str:
        return f"{self.salt}-{name}"

    def complain(self, counts: Counts, *sentences: str) -> None:
        self.counts += counts
        self.complaints += sentences


async def run_case(arena: Arena, cell: Cell) -> Row:
    """Play it. Whatever it did is undone, unless the row says that the cluster is broken.

    Raises HeadraceError if the cluster does not do what is asked of it: workers that cannot be aimed at, processes that
    do not come up.
    """
    began = time.monotonic()
    course = _Course(arena, cell, HELD[cell.seed % len(HELD)], {})
    course.doors = _doors(course)
    try:
        heard = await _struck(course)
    finally:
        if course.blow is not None:
            await clear(arena.cluster, course.blow)
    judged = _judged(course, heard)
    broken, rest_s = await _aftermath(course, heard)
    died = arena.cluster.take_deaths()
    course.complain(Counts(died=len(died)), *died)
    states = [verdict.state for verdict in judged]
    return Row(
        cell,
        course.counts,
        {state: states.count(state) for state in sorted(set(states))},
        tuple(course.complaints),
        course.victim,
        time.monotonic() - began,
        rest_s,
        broken,
    )


def unplayed(cell: Cell, error: HeadraceError) -> Row:
    """A case that could not be played to its end, and left a cluster that is not to be trusted."""
    return Row(cell, Counts(missed=1), {}, (f"it was broken off: {error}",), "", 0.0, 0.0, broken=True)


def _doors(course: _Course) -> Mapping[str, Member]:
    """Requests take turns at the gateway and at a router's own door. The held one comes through the gateway, but for
    odd seeds of a router, which is struck while it is a door itself."""
    members = course.arena.cluster.members
    (gateway,), routers = of_kind(members, Kind.GATEWAY), of_kind(members, Kind.ROUTER)
    turns = (gateway, routers[-1])
    doors = {one.name: turns[place % 2] for place, one in enumerate(course.arena.asks)}
    own_door = course.cell.target is Target.ROUTER and course.cell.seed % 2
    return {**doors, course.held: routers[-1] if own_door else gateway}


async def _struck(course: _Course) -> dict[str, Heard]:
    """Arm, ask, strike, and hear everybody to the end."""
    arena, cell = course.arena, course.cell
    workers = [member.name for member in of_kind(arena.cluster.members, holder(cell))]
    refused_before = await refused(arena.client, arena.cluster.members)
    async with _aimed_at(course, workers):
        asking = {one.name: asyncio.create_task(_ask(course, one)) for one in arena.asks}
        try:
            await (_await_damage(course, workers) if cell.target is Target.WIRE else _blow(course, workers))
            await asyncio.wait(asking.values())
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
    if must_be_refused(cell) and await refused(arena.client, arena.cluster.members) <= refused_before:
        course.complain(Counts(missed=1), "nobody refused the frame that was damaged")
    return {name: task.result() for name, task in asking.items()}


def _aimed_at(course: _Course, workers: Sequence[str]) -> AbstractAsyncContextManager[None]:
    arena, cell, request = course.arena, course.cell, course.request_id(course.held)
    if arena.proxies is not None:
        return arena.proxies.armed(workers, message_fault_of(cell))
    return armed(
        arena.control, workers, fault_of(cell, request) if cell.target is Target.WIRE else hold_of(cell, request)
    )


async def _ask(course: _Course, one: Ask) -> Heard:
    within_s = course.arena.cluster.settings.timeout_s + _GRACE_S
    question, door = salted(one, course.salt), course.doors[one.name]
    return await ask(course.arena.client, door.url, question, course.request_id(one.name), within_s)


async def _await_damage(course: _Course, workers: Sequence[str]) -> None:
    arena = course.arena
    if arena.proxies is None:
        course.victim = await first_struck(arena.control, workers)
    else:
        course.victim = await first_harmed(arena.proxies, workers)
    if not course.victim:
        course.complain(Counts(missed=1), "nothing was damaged on the wire")


async def _blow(course: _Course, workers: Sequence[str]) -> None:
    """Wait for the held request, strike whom the case means, and let it go on under the fault."""
    arena = course.arena
    at = await first_held(arena.control, workers)
    pair = await _pair(course) if at else None
    if not at or pair is None:
        course.complain(Counts(missed=1), "the request was not held" if not at else "nobody conducts the held request")
        if at:
            await release(arena.control, at)
        return
    # Nobody holds it a second time when it is tried again.
    await disarm(arena.control, [worker for worker in workers if worker != at])
    course.blow = aimed(course.cell, pair, arena.cluster)
    course.victim = course.blow.victim
    await strike(arena.cluster, course.blow)
    releasing = asyncio.create_task(release(arena.control, at))
    try:
        hung = await pass_by(arena.cluster, course.blow)
    finally:
        await asyncio.wait({releasing})
    course.complain(Counts(hung=len(hung)), *hung)


async def _pair(course: _Course) -> Pair | None:
    request = course.request_id(course.held)
    routers = of_kind(course.arena.cluster.members, Kind.ROUTER)
    found = await asyncio.gather(*(pair_of(course.arena.client, router, request) for router in routers))
    return next((pair for pair in found if pair is not None), None)


def _judged(course: _Course, heard: Mapping[str, Heard]) -> list[Judged]:
    blow = course.blow
    verdicts = []
    for name, one in heard.items():
        may_be_cut = blow is not None and blow.breaks_connections and course.doors[name].name == blow.victim
        verdicts.append(judge(name, one, course.arena.references[name], may_be_cut=may_be_cut))
    course.complain(total([one.counts for one in verdicts]), *(line for one in verdicts for line in one.complaints))
    return verdicts


async def _aftermath(course: _Course, heard: Mapping[str, Heard]) -> tuple[bool, float]:
    """Bring back who is missing, ask again what was not answered, and wait for rest. Whether the cluster is broken,
    and the seconds until rest."""
    arena = course.arena
    await arena.cluster.launch_missing()
    amiss = await until_whole(arena.client, arena.cluster)
    course.complain(Counts(hung=len(amiss)), *amiss)
    unanswered = [one for one in arena.asks if not finished(heard[one.name])]
    again = await asyncio.gather(*(_again(course, one) for one in unanswered))
    for one, answer in zip(unanswered, again, strict=True):
        verdict = judge(f"{one.name} again", answer, arena.references[one.name], may_be_cut=False)
        unserved = f"{one.name} again: {verdict.state} {[dict(error) for error in answer.errors]}"
        course.complain(verdict.counts, *verdict.complaints)
        if verdict.state != "finished" and not verdict.counts.endings:
            course.complain(Counts(endings=1), unserved)
    held, rest_s = await until_at_rest(arena.client, arena.cluster)
    course.complain(Counts(leaks=len(held)), *held)
    mute = await silent(arena.client, arena.cluster)
    course.complain(Counts(hung=len(mute)), *mute)
    return bool(amiss or held or mute), rest_s


async def _again(course: _Course, one: Ask) -> Heard:
    """The same question at the other door: the case is over, so there must be an answer."""
    arena = course.arena
    doors = of_kind(arena.cluster.members, Kind.GATEWAY, Kind.ROUTER)
    other = next(door for door in doors if door != course.doors[one.name])
    request_id = f"{course.request_id(one.name)}-again"
    within_s = arena.cluster.settings.timeout_s + _GRACE_S
    return await ask(arena.client, other.url, salted(one, course.salt), request_id, within_s)
