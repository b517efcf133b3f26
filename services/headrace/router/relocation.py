"""Relocation: the attempt of a request that goes on elsewhere with its pages, instead of computing them again.

The route's prefill worker is the one that wrote the answer so far: it exports what its frozen job holds. Whatever goes
wrong costs no retry, because the request can still go on without the pages.
"""

from dataclasses import replace

from headrace.core.errors import TakenUp
from headrace.core.fleet import WorkerRef
from headrace.core.generation import FinishReason
from headrace.core.jobs import Frozen, Granted, Job, JobKind, TokenEvent
from headrace.core.lifecycle import Phase
from headrace.core.route import Route
from headrace.core.ticket import Ticket
from headrace.core.waterfall import Stage
from headrace.router.attempt import Attempt, Footing
from headrace.router.leg import Notice
from headrace.router.retries import AttemptFailed, Fault


class Relocation(Attempt):
    """source: the attempt whose answer stands still; it is closed with this one, and as soon as the answer goes on.
    last_token: the answer's last, the one without KV: the new worker is given it as prefill's first token."""

    def __init__(self, job: Job, route: Route, footing: Footing, *, source: Attempt, last_token: int) -> None:
        super().__init__(job, route, footing)
        self._source = source
        self._last_token = last_token

    def take(self, notice: Notice) -> TokenEvent | FinishReason | Frozen | None:
        went_on = self.decoding
        try:
            heard = super().take(notice)
        except AttemptFailed as failure:
            raise _without_pages(failure) from None
        if self.decoding and not went_on:
            self._source.close()
        return heard

    def silent(self) -> AttemptFailed:
        return _without_pages(super().silent())

    def close(self) -> None:
        super().close()
        self._source.close()

    async def drained(self, seconds: float) -> None:
        await super().drained(seconds)
        await self._source.drained(seconds)

    def waits_for(self, worker: WorkerRef) -> bool:
        """Whether pages of `worker` are still to come."""
        return worker == self.route.prefill and not self.decoding

    def _sending(self, ticket: Ticket) -> Job:
        return replace(super()._sending(ticket), kind=JobKind.EXPORT)

    def _sent(self) -> None:
        self._life.enter(Stage.COMMIT)
        self._life.to(Phase.TRANSFERRING)

    def _grant(self, granted: Granted) -> None:
        super()._grant(granted)
        self.go_on(self._last_token)


def _without_pages(failure: AttemptFailed) -> AttemptFailed:
    """What could not bring the pages says nothing of who can serve the request. A death stays one, and a request that
    another router took up is that one's."""
    if failure.fault is not Fault.FAILED or isinstance(failure.error, TakenUp):
        return failure
    return AttemptFailed(failure.error, failure.worker, Fault.MOVED)
