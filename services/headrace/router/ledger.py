"""What this router has given to each worker and no load report shows yet, so that no credit is spent twice.

Knows nothing of routes or streams. A job counts against a worker's credits until a report that names it, or a
fall of the reported credits, shows that the worker counts it itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.core.fleet import Load, WorkerRef
from headrace.core.jobs import JobKey
from headrace.router.view import Inflight


@dataclass(slots=True)
class _Entry:
    tokens: int
    reflected: bool = False


class Ledger:
    """Jobs in flight by worker. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[WorkerRef, dict[JobKey, _Entry]] = {}
        self._cool_until: dict[WorkerRef, float] = {}

    @property
    def jobs(self) -> int:
        """Legs in flight on all workers together."""
        return sum(map(len, self._jobs.values()))

    def spend(self, key: JobKey, worker: WorkerRef, uncomputed_tokens: int) -> None:
        """One credit of `worker` goes to the job `key`, which has so many tokens to compute there."""
        self._jobs.setdefault(worker, {})[key] = _Entry(uncomputed_tokens)

    def computed(self, key: JobKey) -> None:
        """The job's first token is here: nothing waits behind its prompt any more."""
        for jobs in self._jobs.values():
            if key in jobs:
                jobs[key].tokens = 0

    def leave(self, key: JobKey, worker: WorkerRef) -> None:
        """The job is over on this worker, and goes on elsewhere. Unknown ones are ignored."""
        jobs = self._jobs.get(worker, {})
        jobs.pop(key, None)
        if not jobs:
            self._jobs.pop(worker, None)

    def release(self, key: JobKey) -> None:
        """The job is over on every worker. Unknown keys are ignored."""
        for worker in tuple(self._jobs):
            self.leave(key, worker)

    def reflect(self, worker: WorkerRef, before: Load, after: Load, named: Iterable[JobKey]) -> None:
        """A load report came; it names the jobs `named`."""
        jobs = self._jobs.get(worker, {})
        for key in named:
            if key in jobs:
                jobs[key].reflected = True
        fallen = before.credits - after.credits
        for entry in jobs.values():
            if fallen > 0 and not entry.reflected:
                entry.reflected = True
                fallen -= 1

    def cool(self, worker: WorkerRef, seconds: float) -> None:
        """The worker answered Busy: offer it nothing for a while."""
        self._cool_until[worker] = self._clock() + seconds

    def cooling(self, worker: WorkerRef) -> bool:
        return self._cool_until.get(worker, 0.0) > self._clock()

    def forget(self, worker: WorkerRef) -> None:
        """The incarnation is gone for good."""
        self._jobs.pop(worker, None)
        self._cool_until.pop(worker, None)

    def inflight(self, worker: WorkerRef) -> Inflight:
        jobs = self._jobs.get(worker, {}).values()
        return Inflight(
            jobs=len(jobs),
            unreflected=sum(not entry.reflected for entry in jobs),
            uncomputed_tokens=sum(entry.tokens for entry in jobs),
        )
