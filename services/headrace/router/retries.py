"""When to try again: what a failed attempt means for the request."""

import asyncio
from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import DeadlineExceeded, HeadraceError, WorkerLost
from headrace.core.fleet import WorkerRef
from headrace.router.absence import Absence
from headrace.router.retry_budget import RetryBudget

MAX_DEATHS = 2
MAX_FAILURES = 4


class Fault(Enum):
    """lost: the worker is dead. cut: its stream broke or it stood still, and it may yet be alive. away: the job never
    left for it. busy: it had no room. failed: it, or what it depends on, could not. moved: it wanted, or had, to be rid
    of the job, for no fault of anybody's."""

    LOST = "lost"
    CUT = "cut"
    AWAY = "away"
    BUSY = "busy"
    FAILED = "failed"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that left while it had the request. held: it had begun with it, as far as its router can tell."""

    absence: Absence
    held: bool


class AttemptFailed(Exception):
    """An attempt is over without an ending for the request. worker: where it showed. suspects: who may be to blame, or
    where a request that moved should not go.

    loss: the worker's absence, where it is one.
    """

    def __init__(
        self,
        error: HeadraceError,
        worker: WorkerRef,
        fault: Fault,
        suspects: tuple[WorkerRef, ...] = (),
        loss: Loss | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.worker = worker
        self.fault = fault
        self.suspects = suspects
        self.loss = loss


class Retries:
    """One request's record. excluded: workers that are dead. avoided: workers it failed on."""

    def __init__(self, budget: RetryBudget) -> None:
        self.excluded: frozenset[WorkerRef] = frozenset()
        self.avoided: frozenset[WorkerRef] = frozenset()
        self.last: HeadraceError | None = None
        self._budget = budget
        self._losses: list[Loss] = []
        self._failures = 0

    @property
    def deadly(self) -> bool:
        """So many workers died with the request in their hands that it may be what kills them."""
        return sum(loss.held and loss.absence.dead for loss in self._losses) >= MAX_DEATHS

    def weigh(self, failure: AttemptFailed) -> None:
        """Returns if another attempt is right; else raises the error that ends the request."""
        self.last = failure.error
        match failure.fault:
            case Fault.BUSY | Fault.AWAY:
                # Nothing was begun, so nothing is repeated.
                return
            case Fault.MOVED:
                # What is repeated is not the request's to pay for, and nobody is suspected of anything.
                self.avoided |= set(failure.suspects)
                return
            case Fault.LOST:
                self.excluded |= {failure.worker}
            case Fault.CUT | Fault.FAILED:
                self._failures += 1
                self.avoided |= set(failure.suspects)
        if failure.loss is not None:
            self._losses.append(failure.loss)
        # A worker whose time for the job ran out only says first what this request would be told next.
        if not failure.error.kind.retryable or isinstance(failure.error, DeadlineExceeded):
            raise failure.error
        self._require_few_deaths()
        if self._failures > MAX_FAILURES or not self._budget.spend():
            raise failure.error

    async def cleared(self) -> None:
        """Return once fewer than MAX_DEATHS workers can have died on the request: before that it meets no other.

        Raises WorkerLost once as many have. Waits for verdicts only, which every absence has in the end.
        """
        while True:
            self._require_few_deaths()
            open_cases = [loss.absence for loss in self._losses if not loss.absence.settled]
            if self._deaths + len(open_cases) < MAX_DEATHS:
                return
            verdict = asyncio.Event()
            for absence in open_cases:
                absence.then(verdict.set)
            await verdict.wait()

    @property
    def _deaths(self) -> int:
        return sum(loss.absence.dead for loss in self._losses)

    def _require_few_deaths(self) -> None:
        if self._deaths >= MAX_DEATHS:
            assert self.last is not None
            raise WorkerLost(f"{self._deaths} workers were lost while they held the request. {self.last.message}")
