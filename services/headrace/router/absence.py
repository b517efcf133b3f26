"""An absence: from the break of a worker's stream until it is known whether the same incarnation comes back.

Owns the verdict and its timer. An absence that ends was a cut, one that does not is a death. Knows no requests.
"""

import asyncio
from collections.abc import Callable

import structlog

from headrace.core.fleet import WorkerRef

log = structlog.get_logger()


class Absence:
    """settled: there is a verdict. dead: what it is; an incarnation that comes back late is not dead any more."""

    def __init__(self, worker: WorkerRef) -> None:
        self.worker = worker
        self.settled = False
        self.dead = False
        self._told: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float, contact: Callable[[], float]) -> None:
        """Take the incarnation for dead if nothing is heard of it for so long, in which others were. contact: for how
        long some worker has been attached: where none is, the silence may be the router's own."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._overdue, seconds, contact)

    def then(self, tell: Callable[[], None]) -> None:
        """Call `tell` once there is a verdict; at once if there is."""
        if self.settled:
            tell()
        else:
            self._told.append(tell)

    def back(self) -> None:
        """The same incarnation is attached again."""
        self._settle(dead=False)

    def gone(self) -> None:
        """It will never be: it said so, another took its place, or its lease ended."""
        self._settle(dead=True)

    def _overdue(self, seconds: float, contact: Callable[[], float]) -> None:
        if (missing := seconds - contact()) > 0:
            self._timer = asyncio.get_running_loop().call_later(missing, self._overdue, seconds, contact)
            return
        log.warning("worker.not_back", worker=str(self.worker), waited_s=seconds)
        self.gone()

    def _settle(self, *, dead: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.dead, self.settled = dead, True
        told, self._told = self._told, []
        for tell in told:
            tell()
