"""Move: which requests leave a worker that wants to be rid of them, when, and how many at once.

Owns the pace. A worker that leaves gives up what writes its answer there, the oldest first, as far as others have room;
prompts that it reads for others go on there, and their pages are handed over as ever. One that is crowded gives up what
it names. How a request goes on elsewhere is `migration`'s affair.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from headrace.core.fleet import WorkerRef
from headrace.router.attempt import Attempt
from headrace.router.leg import Move, Notice
from headrace.router.run import Run
from headrace.router.view import WorkerView

log = structlog.get_logger()

AT_ONCE = 4
"""Requests that are on their way from one worker at a time: what goes on there meanwhile makes no pause."""
ROOM = 2
"""Credits that who takes a request from a crowded worker must have, so that it is not crowded next."""


@dataclass(frozen=True, slots=True)
class _Trip:
    """A request on its way from `worker`. attempt: by which it was there."""

    run: Run
    worker: WorkerRef
    attempt: Attempt
    alarm: asyncio.TimerHandle


class Mover:
    """runs: all that run, oldest first. views: the fleet now. can_leave: whether a run can do as it would be
    asked. move_s: what one may take to go on elsewhere with its pages; then it goes on
    without them, and the next one's turn comes. relief_s: between two requests that leave one crowded worker: what the
    first one's going is good for shows in the meantime."""

    def __init__(
        self,
        *,
        runs: Callable[[], Iterable[Run]],
        views: Callable[[], Sequence[WorkerView]],
        can_leave: Callable[[Run, Move], bool],
        move_s: float,
        relief_s: float,
    ) -> None:
        self._runs = runs
        self._views = views
        self._can_leave = can_leave
        self._move_s = move_s
        self._relief_s = relief_s
        self._plights: set[WorkerRef] = set()
        self._trips: dict[str, _Trip] = {}
        self._relieved_at: dict[WorkerRef, float] = {}
        self._scheduled: asyncio.Handle | None = None
        self._next_relief: asyncio.TimerHandle | None = None

    def see(self, worker: WorkerRef) -> None:
        """The worker said that it leaves, or that it is crowded."""
        self._plights.add(worker)
        self.wake()

    def wake(self) -> None:
        """Something changed that may let a request go: look, soon and once."""
        if self._plights and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._look)

    def arrived(self, run: Run) -> bool:
        """Whether the run, of which a token came, was on its way. It is so no longer."""
        trip = self._trips.get(run.request.id)
        if trip is None or trip.attempt is run.attempt:
            return False
        self.settled(run)
        return True

    def settled(self, run: Run, worker: WorkerRef | None = None) -> None:
        """The run goes on, is over, or stays where it is. worker: only if it was on its way from this one."""
        trip = self._trips.get(run.request.id)
        if trip is None or trip.run is not run or worker not in {None, trip.worker}:
            return
        del self._trips[run.request.id]
        trip.alarm.cancel()
        self.wake()

    def _look(self) -> None:
        self._scheduled = None
        views = {view.state.info.ref: view.state for view in self._views()}
        for worker in tuple(self._plights):
            state = views.get(worker)
            if state is not None and state.attached and state.draining:
                self._empty_out(worker)
            elif state is not None and state.attached and state.load.crowded:
                self._relieve(worker, state.load.crowded)
            else:
                self._plights.discard(worker)
                self._relieved_at.pop(worker, None)

    def _empty_out(self, worker: WorkerRef) -> None:
        """What does not fit anywhere now does not keep what does."""
        move = Move(worker, with_pages=True)
        more = AT_ONCE - sum(trip.worker == worker for trip in self._trips.values())
        able = (run for run in self._on(worker) if self._can_leave(run, move))
        for run in islice(able, max(0, more)):
            self._ask(run, move)

    def _relieve(self, worker: WorkerRef, crowded: Sequence[str]) -> None:
        """One of the requests whose jobs lost their pages: there is nothing there to take along. Each leaves once.

        crowded: their ids, the one that would be served last first.
        """
        loop = asyncio.get_running_loop()
        wait_s = self._relieved_at.get(worker, -self._relief_s) + self._relief_s - loop.time()
        if wait_s > 0:
            if self._next_relief is None:
                self._next_relief = loop.call_later(wait_s, self._relieve_more)
            return
        move = Move(worker, room=ROOM)
        there = {run.request.id: run for run in self._on(worker) if not run.relieved}
        named = (there[request] for request in crowded if request in there)
        run = next((run for run in named if self._can_leave(run, move)), None)
        if run is not None:
            self._relieved_at[worker] = loop.time()
            self._ask(run, move)

    def _relieve_more(self) -> None:
        self._next_relief = None
        self.wake()

    def _on(self, worker: WorkerRef) -> list[Run]:
        """Runs whose answer is written there and that are not on their way; those last that were and did not get on."""
        staying = [
            run
            for run in self._runs()
            if run.attempt is not None
            and run.attempt.route.decode == worker
            and run.request.id not in self._trips
            and not run.life.ended
        ]
        return sorted(staying, key=lambda run: run.asked_to_move)

    def _ask(self, run: Run, move: Move) -> None:
        assert run.attempt is not None
        alarm = asyncio.get_running_loop().call_later(self._move_s, self._overdue, run, move)
        self._trips[run.request.id] = _Trip(run, move.worker, run.attempt, alarm)
        run.asked_to_move += 1
        log.info("request.moves", request=run.request.id, worker=str(move.worker), with_pages=move.with_pages)
        run.inbox.put_nowait(Notice(None, move))

    def _overdue(self, run: Run, move: Move) -> None:
        """It may still be where it was, because its caller does not read, or its pages may not get on."""
        self._trips.pop(run.request.id, None)
        run.inbox.put_nowait(Notice(None, Move(move.worker, room=move.room)))
        self.wake()
