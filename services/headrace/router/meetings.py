"""Meetings: which prefill workers are told to call which decode workers, so that no request pays for the first call.

Owns what was asked and not answered yet. It decides who meets whom, and knows neither streams nor requests.
"""

from collections.abc import Callable, Iterable

import structlog

from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.jobs import Meet, Met

log = structlog.get_logger()


class Meetings:
    """wait_s: a pair that was asked to meet, and has not, is new for so long; then it is as good as any, and what its
    transfers come to is theirs to say. clock: seconds."""

    def __init__(self, wait_s: float, clock: Callable[[], float]) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._asked: dict[WorkerRef, dict[WorkerRef, float]] = {}

    def begin(self, one: WorkerInfo, attached: Iterable[WorkerInfo]) -> list[tuple[WorkerRef, Meet]]:
        """`one` came: which prefill workers must be told to meet whom."""
        pairs = [pair for other in attached if (pair := _pair(one, other)) is not None]
        for prefill, decode in pairs:
            self._asked.setdefault(prefill.ref, {})[decode.ref] = self._clock()
        return [(prefill.ref, Meet(decode.ref, decode.link, decode.data_address)) for prefill, decode in pairs]

    def over(self, prefill: WorkerRef, met: Met) -> None:
        """What a prefill worker says came of it. One that failed stays new for its time."""
        if met.reason:
            log.warning("workers.not_met", prefill=str(prefill), decode=str(met.peer), reason=met.reason)
        elif met.peer in self._asked.get(prefill, {}):
            log.info("workers.met", prefill=str(prefill), decode=str(met.peer), ms=round(met.ms, 1))
            self._forget(prefill, met.peer)

    def left(self, worker: WorkerRef) -> None:
        """It is not attached any more."""
        self._asked.pop(worker, None)
        for prefill in tuple(self._asked):
            self._forget(prefill, worker)

    def new_to(self, prefill: WorkerRef) -> frozenset[WorkerRef]:
        """Decode workers that it was asked to meet lately and has not."""
        asked = self._asked.get(prefill)
        if not asked:
            return frozenset()
        before = self._clock() - self._wait_s
        for decode in [decode for decode, at in asked.items() if at <= before]:
            self._forget(prefill, decode)
        return frozenset(self._asked.get(prefill, ()))

    def _forget(self, prefill: WorkerRef, decode: WorkerRef) -> None:
        asked = self._asked[prefill]
        asked.pop(decode, None)
        if not asked:
            del self._asked[prefill]


def _pair(one: WorkerInfo, other: WorkerInfo) -> tuple[WorkerInfo, WorkerInfo] | None:
    """Prefill and decode worker, if they are that and might exchange pages."""
    prefill, decode = (one, other) if one.role is Role.PREFILL else (other, one)
    apart = (one.model_digest, one.link) != (other.model_digest, other.link)
    if apart or (prefill.role, decode.role) != (Role.PREFILL, Role.DECODE):
        return None
    return prefill, decode
