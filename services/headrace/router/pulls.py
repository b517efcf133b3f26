"""Pulls: which prefixes are on their way to which worker, how they came, and who is left out of them for a while.

Knows no jobs and no wire.
"""

from collections.abc import Callable
from enum import Enum

import structlog

from headrace.core.fleet import WorkerRef
from headrace.core.route import Pull
from headrace.telemetry.metrics import RouterMetrics

log = structlog.get_logger()

_SHUN_S = 5.0


class PullEnd(Enum):
    """pulled: all of it came. busy: one end had no room for it. failed: the holder does not have it any more, or what
    came did not verify, or the reader refused it, or an end was lost. late: it was not waited for any longer. shared:
    it came, or did not, for another request. given_up: its request was, or went on elsewhere."""

    PULLED = "pulled"
    BUSY = "busy"
    FAILED = "failed"
    LATE = "late"
    SHARED = "shared"
    GIVEN_UP = "given_up"


Name = tuple[WorkerRef, bytes]
"""A prefix on its way: where to, and the hash of its last block."""


class Pulls:
    """clock: monotonic seconds."""

    def __init__(self, metrics: RouterMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._shunned: dict[WorkerRef, float] = {}
        self._under_way: dict[Name, list[Callable[[], None]]] = {}
        for end in PullEnd:
            metrics.pulls.labels(end.value)

    @property
    def shunned(self) -> frozenset[WorkerRef]:
        """Workers at which a pull lately failed: holders that did not bring it, readers that did not take it."""
        now = self._clock()
        self._shunned = {worker: until for worker, until in self._shunned.items() if until > now}
        return frozenset(self._shunned)

    def join(self, name: Name, told: Callable[[], None]) -> bool:
        """Whether it is under way for another request; `told` is called when it is not any more. If not, it is under
        way for this one from now on, until `leave`."""
        joined = name in self._under_way
        if joined:
            self._under_way[name].append(told)
        else:
            self._under_way[name] = []
        return joined

    def leave(self, name: Name) -> None:
        """It is not under way any more."""
        for told in self._under_way.pop(name):
            told()

    def over(
        self, request: str, pull: Pull, end: PullEnd, tokens: int = 0, *, failed_at: WorkerRef | None = None
    ) -> None:
        """One came to its end. tokens: that moved for it and are here. failed_at: who did not do its part."""
        self._metrics.pulls.labels(end.value).inc()
        self._metrics.pulled_tokens.inc(tokens)
        if failed_at is not None:
            self._shunned[failed_at] = self._clock() + _SHUN_S
        log.info("pull.over", request=request, holder=str(pull.holder), end=end.value, tokens=tokens)

    def excuse(self, worker: WorkerRef) -> None:
        """It came of the other end."""
        self._shunned.pop(worker, None)
