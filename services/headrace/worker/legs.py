"""Legs: which jobs are here, at most one of a request before the engine, and who goes on when that one has let go.
Exports come beside them.

Owns the register and the order of succession. It knows no states and ends nothing; everything happens on the event
loop.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.core.jobs import JobKey, JobKind

if TYPE_CHECKING:
    from headrace.worker.jobs import Leg


class Legs:
    """The jobs that still hold something here, and those that wait for an older attempt at their request to let go.

    One leg of a request holds its place; one more may wait behind it. An export only reads pages, maybe those of the
    leg that holds the place, so it takes none. A leg leaves when it is GONE.
    """

    def __init__(self) -> None:
        self._holding: dict[str, Leg] = {}
        self._waiting: dict[str, Leg] = {}
        self._exports: dict[JobKey, Leg] = {}
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
        found = (self._holding.get(request), self._waiting.get(request))
        exports = (leg for key, leg in self._exports.items() if key.request == request)
        return (*(leg for leg in found if leg is not None), *exports)

    def sending_or_receiving(self, transfer: bytes) -> "Leg | None":
        return self._by_transfer.get(transfer)

    def put(self, leg: "Leg") -> bool:
        """True: the place of its request is the leg's. False: its `proceed` is called once it is."""
        request = leg.key.request
        if leg.job.kind is JobKind.EXPORT:
            self._exports[leg.key] = leg
            self._empty.clear()
            return True
        assert request not in self._waiting, "who waits is superseded first"
        if request in self._holding:
            self._waiting[request] = leg
            return False
        self._holding[request] = leg
        self._empty.clear()
        return True

    def drop(self, leg: "Leg") -> None:
        """It holds nothing any more: who waits behind it goes on."""
        request = leg.key.request
        if self._waiting.get(request) is leg:
            del self._waiting[request]
        elif self._exports.get(leg.key) is leg:
            del self._exports[leg.key]
        else:
            del self._holding[request]
            if heir := self._waiting.pop(request, None):
                self._holding[request] = heir
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
