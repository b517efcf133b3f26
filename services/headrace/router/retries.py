"""When to try again: what a failed attempt means for the request, and how much the fleet may be asked to repeat."""

from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import DeadlineExceeded, HeadraceError, WorkerLost
from headrace.core.fleet import WorkerRef

MAX_DEATHS = 2
MAX_FAILURES = 4


class Fault(Enum):
    """lost: the worker is gone. busy: it had no room. failed: it, or what it depends on, could not."""

    LOST = "lost"
    BUSY = "busy"
    FAILED = "failed"


class AttemptFailed(Exception):
    """An attempt is over without an ending for the request. worker: where it showed. suspects: who may be to blame."""

    def __init__(
        self, error: HeadraceError, worker: WorkerRef, fault: Fault, suspects: tuple[WorkerRef, ...] = ()
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.worker = worker
        self.fault = fault
        self.suspects = suspects


@dataclass(slots=True)
class RetryBudget:
    """Router-wide: each request earns a fraction of a retry, so that a sick fleet is not asked for ever more."""

    most: float = 100.0
    per_request: float = 0.2
    left: float = 100.0

    def earn(self) -> None:
        self.left = min(self.most, self.left + self.per_request)

    def spend(self) -> bool:
        """False if there is none left."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Retries:
    """One request's record. excluded: workers that died on it. avoided: workers it failed on."""

    def __init__(self, budget: RetryBudget) -> None:
        self.excluded: frozenset[WorkerRef] = frozenset()
        self.avoided: frozenset[WorkerRef] = frozenset()
        self.last: HeadraceError | None = None
        self._budget = budget
        self._deaths = 0
        self._failures = 0

    @property
    def deadly(self) -> bool:
        """So many workers died on the request that it may be what kills them."""
        return self._deaths >= MAX_DEATHS

    def weigh(self, failure: AttemptFailed) -> None:
        """Returns if another attempt is right; else raises the error that ends the request."""
        self.last = failure.error
        match failure.fault:
            case Fault.BUSY:
                return
            case Fault.LOST:
                self._deaths += 1
                self.excluded |= {failure.worker}
            case Fault.FAILED:
                self._failures += 1
                self.avoided |= set(failure.suspects)
        # A worker whose time for the job ran out only says first what this request would be told next.
        if not failure.error.kind.retryable or isinstance(failure.error, DeadlineExceeded):
            raise failure.error
        if self.deadly:
            raise WorkerLost(f"{self._deaths} workers were lost while they held the request. {failure.error.message}")
        if self._failures > MAX_FAILURES or not self._budget.spend():
            raise failure.error
