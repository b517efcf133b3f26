"""Reception: does what routers say. Which jobs are taken, which give way to a newer one, which are none of theirs.

Owns the reading of one router's commands. It knows the worker's state only by the two questions it may ask, and
nothing of what becomes of a job that was taken.
"""

from collections.abc import AsyncIterator, Callable

import structlog

from headrace.core.blocks import blocks_for
from headrace.core.errors import HeadraceError, InvalidRequest, TakenUp, WorkerLost
from headrace.core.jobs import (
    Abort,
    Activate,
    Busy,
    Command,
    Drain,
    Ending,
    Freeze,
    Hello,
    Job,
    JobKey,
    JobKind,
    Meet,
    Outcome,
    Submit,
)
from headrace.worker.export import ExportLeg
from headrace.worker.freezing import freeze
from headrace.worker.handover import HandoverLeg
from headrace.worker.imports import ImportLeg
from headrace.worker.intake import IntakeLeg
from headrace.worker.introduction import introduce
from headrace.worker.jobs import RETRY_AFTER_S, Leg, Station
from headrace.worker.load import JobSize
from headrace.worker.local import LocalLeg
from headrace.worker.outbox import Outbox

log = structlog.get_logger()

_LEGS: dict[JobKind, type[Leg]] = {
    JobKind.PREFILL: HandoverLeg,
    JobKind.DECODE: IntakeLeg,
    JobKind.LOCAL: LocalLeg,
    JobKind.EXPORT: ExportLeg,
    JobKind.IMPORT: ImportLeg,
}


class Reception:
    """taking: whether new jobs are taken now. fatal: why none ever will be again, None while that is not so.
    leave: told that the worker is to go, and the seconds of grace that its jobs get.

    Of one request a worker runs one job: what is submitted last counts, whichever router says so, because a router
    tries again only when it has given the older attempt up, and another one only when the first was. The newer job
    begins when the older one's pages are let go, so that those already verified count as resident for it. An export
    ends nothing but other exports of its request, and is taken by a worker that drains: that is how its jobs go on.
    """

    def __init__(
        self,
        station: Station,
        size: JobSize,
        block_tokens: int,
        *,
        taking: Callable[[], bool],
        fatal: Callable[[], HeadraceError | None],
        leave: Callable[[float], None],
    ) -> None:
        self._station = station
        self._size = size
        self._block_tokens = block_tokens
        self._taking = taking
        self._fatal = fatal
        self._leave = leave

    async def serve(self, commands: AsyncIterator[Command], outbox: Outbox) -> None:
        """Do what the router says until its stream ends; then none of its jobs is wanted any more."""
        try:
            async for command in commands:
                self._obey(command, outbox)
                if outbox.closed:
                    break
        finally:
            for leg in self._station.legs:
                if leg.outbox is outbox:
                    leg.end(Outcome.ABORTED)
            outbox.close()

    def _obey(self, command: Command, outbox: Outbox) -> None:
        match command:
            case Submit(job):
                self._submit(job, outbox)
            case Activate(key, first_token):
                if leg := self._find(key, outbox):
                    leg.activate(first_token)
            case Abort(key, lost):
                if leg := self._find(key, outbox):
                    leg.end(Outcome.ABORTED)
                if lost:
                    self._peer_lost(key, outbox)
            case Meet() as meet:
                introduce(meet, self._station.carrier, self._station.tickets.link, outbox)
            case Freeze(key):
                if leg := self._find(key, outbox):
                    freeze(leg, self._station.engine)
            case Drain(grace_s):
                log.info("worker.leave", router=outbox.router, grace_s=grace_s)
                self._leave(grace_s)
            case Hello():
                raise InvalidRequest("Hello comes once, as the first command.")

    def _find(self, key: JobKey, outbox: Outbox) -> Leg | None:
        """The router's own job of that key; another router's is none of its business."""
        return next((leg for leg in self._station.legs.of(key.request) if _is(leg, key, outbox)), None)

    def _peer_lost(self, key: JobKey, outbox: Outbox) -> None:
        """The other end of a job is dead, says the router that gave it. What is under way between them may have
        outlasted the job, which ends at its fence."""
        transfer = self._station.traces.find(outbox.router, key)
        if transfer is not None:
            self._station.carrier.cancel(transfer, lost=True)

    def _submit(self, job: Job, outbox: Outbox) -> None:
        live = self._find(job.key, outbox)
        if live is not None and live.outcome is None:
            # An ending would speak for the job that lives.
            log.warning("job.duplicate", job=str(job.key), router=outbox.router)
        elif (error := self._fatal()) and (isinstance(error, WorkerLost) or job.kind is not JobKind.EXPORT):
            self._reject(job, outbox, error)
        elif error or live is not None or self._has_no_place_for(job):
            # Of an export too whose pages cannot leave any more: an ending would have its router wonder whether they
            # are all where they were to go.
            outbox.reply(Busy(job.key, RETRY_AFTER_S))
        else:
            self._begin(job, outbox)

    def _has_no_place_for(self, job: Job) -> bool:
        """None are taken now, or one is here that the engine would take for it."""
        return not (self._taking() or job.kind is JobKind.EXPORT) or self._station.legs.has_twin(job)

    def _begin(self, job: Job, outbox: Outbox) -> None:
        for older in self._station.legs.of(job.key.request):
            if older.job.kind is JobKind.EXPORT or job.kind is not JobKind.EXPORT:
                _supersede(older, outbox)
        self._size.see(blocks_for(len(job.tokens), self._block_tokens))
        _LEGS[job.kind](job, outbox, self._station).begin()

    def _reject(self, job: Job, outbox: Outbox, error: HeadraceError) -> None:
        self._station.metrics.jobs.labels(job.kind.value, Outcome.FAILED.value).inc()
        outbox.ending(Ending(job.key, Outcome.FAILED, error))
        log.warning("job.reject", job=str(job.key), error=error.kind.code)


def _is(leg: Leg, key: JobKey, outbox: Outbox) -> bool:
    return leg.key == key and leg.outbox is outbox


def _supersede(older: Leg, outbox: Outbox) -> None:
    """End an attempt that a newer one replaces. Its own router knows; another one must not try again against it."""
    if older.outcome is not None:
        return
    log.info("job.superseded", job=str(older.key), router=older.outbox.router, by=outbox.router)
    if older.outbox.router == outbox.router:
        older.end(Outcome.ABORTED)
    else:
        older.end(
            Outcome.FAILED,
            TakenUp(
                f"Another router has taken up the request {older.key.request!r}.",
                remedy="Its answer comes from there; give each request its own id.",
            ),
        )
