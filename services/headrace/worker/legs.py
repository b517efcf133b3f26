"""Legs: which jobs are here, at most one of a request before the engine, and who goes on when that one has let go.
Exports come beside them, one of a name.

Owns the register and the order of succession. It knows no states and ends nothing; everything happens on the event
loop.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.core.jobs import Job, JobKey, JobKind

if TYPE_CHECKING:
    from headrace.worker.jobs import Leg


Place = str | JobKey


class Legs:
    """The jobs that still hold something here, and those that wait for an older one to let go.

    One leg of a request holds its place; one more may wait behind it. An export only reads pages, maybe those of the
    leg that holds the place, so its place is its own key: the engine and what it reads know it by that, so no second
    one begins before it has let go. A leg leaves when it is GONE.
    """

    def __init__(self) -> None:
        self._holding: dict[Place, Leg] = {}
        self._exports: dict[Place, Leg] = {}
        self._waiting: dict[Place, Leg] = {}
        self._by_transfer: dict[bytes, Leg] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._holding) + len(self._waiting) + len(self._exports)

    def __iter__(self) -> Iterator["Leg"]:
        return iter((*self._holding.values(), *self._waiting.values(), *self._exports.values()))

    @property
    def transfers(self) -> int:
        """How many transfers are under way."""
        return len(self._by_transfer)

    def find(self, key: JobKey) -> "Leg | None":
        """The leg that stands before the engine under this key."""
        leg = self._holding.get(key.request)
        return leg if leg is not None and leg.key == key else None

    def of(self, request: str) -> tuple["Leg", ...]:
        """All legs of a request: the one that holds its place, then the one that waits, then exports."""
        exports = (leg.key for leg in self._exports.values() if leg.key.request == request)
        places: tuple[Place, ...] = (request, *exports)
        found = (legs.get(place) for place in places for legs in (self._holding, self._exports, self._waiting))
        return tuple(leg for leg in found if leg is not None)

    def has_twin(self, job: Job) -> bool:
        """Whether one of the other sort, an export or not, is here under the key of `job`."""
        return any(
            leg.key == job.key and (leg.job.kind is JobKind.EXPORT) != (job.kind is JobKind.EXPORT)
            for leg in self.of(job.key.request)
        )

    def sending_or_receiving(self, transfer: bytes) -> "Leg | None":
        return self._by_transfer.get(transfer)

    def put(self, leg: "Leg") -> bool:
        """True: its place is the leg's. False: its `proceed` is called once it is."""
        place, holders = self._place(leg.job)
        assert place not in self._waiting, "who waits is superseded first"
        if place in holders:
            self._waiting[place] = leg
            return False
        holders[place] = leg
        self._empty.clear()
        return True

    def drop(self, leg: "Leg") -> None:
        """It holds nothing any more: who waits behind it goes on."""
        place, holders = self._place(leg.job)
        if self._waiting.get(place) is leg:
            del self._waiting[place]
            return
        del holders[place]
        if heir := self._waiting.pop(place, None):
            holders[place] = heir
            heir.proceed()
        if not (self._holding or self._exports):
            self._empty.set()

    def bind(self, transfer: bytes, leg: "Leg") -> None:
        self._by_transfer[transfer] = leg

    def unbind(self, transfer: bytes) -> None:
        del self._by_transfer[transfer]

    async def empty(self) -> None:
        """Return once there is no job left."""
        await self._empty.wait()

    def _place(self, job: Job) -> tuple[Place, "dict[Place, Leg]"]:
        """Which place a job takes, among which holders."""
        return (job.key, self._exports) if job.kind is JobKind.EXPORT else (job.key.request, self._holding)
