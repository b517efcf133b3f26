"""Leg: one job of this worker, in one explicit state from submit to gone.

Owns the states, the table of legal moves, and what all kinds of job share: the deadline, the one ending, the way
out. It knows no streams and no threads; every method runs on the event loop. What a kind does between its
admission and its end is in `local`, `handover`, `intake` and `export`; which legs there are is in `legs`.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

import structlog

from headrace.core.errors import DeadlineExceeded, HeadraceError, InternalError, Overloaded
from headrace.core.jobs import Busy, Ending, Job, JobKey, JobKind, Outcome
from headrace.core.waterfall import TransferNote
from headrace.engine.engine import Admission, Engine, Finished, Progress, Sampled
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import Carrier, TransferReport
from headrace.worker.legs import Legs
from headrace.worker.loop import EngineLoop, Pending
from headrace.worker.outbox import Outbox
from headrace.worker.tickets import TicketOffice
from headrace.worker.traces import Traces

log = structlog.get_logger()

RETRY_AFTER_S = 0.25


class State(Enum):
    """Where a job stands. After its ending was told it is REMOVING, DRAINING or GONE, never back."""

    WAITING = "waiting"  # an older job in its place still holds something here
    ADDING = "adding"  # before the engine
    RECEIVING = "receiving"  # decode: pages on their way, or all here and not yet activated
    RUNNING = "running"  # in the engine's batches
    SENDING = "sending"  # prefill: first token told, export: begun; pages on their way out
    DRAINING = "draining"  # over, but a transfer may still touch its pages: waiting for the fence (I6)
    REMOVING = "removing"  # over, the engine is giving its pages back
    GONE = "gone"


_OUT = frozenset({State.DRAINING, State.REMOVING})

MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.ADDING, State.GONE}),
    State.ADDING: frozenset({State.RECEIVING, State.RUNNING, State.SENDING, State.REMOVING, State.GONE}),
    State.RECEIVING: _OUT | {State.RUNNING},
    State.RUNNING: _OUT | {State.SENDING},
    State.SENDING: _OUT,
    State.DRAINING: frozenset({State.REMOVING}),
    State.REMOVING: frozenset({State.GONE}),
    State.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Station:
    """What a leg works with."""

    engine: EngineLoop
    carrier: Carrier
    tickets: TicketOffice
    metrics: WorkerMetrics
    legs: Legs = field(default_factory=Legs)
    traces: Traces = field(default_factory=Traces)


class Leg(ABC):
    """One job here. It ends once: by itself, by its router, by its deadline or by a failure (I3).

    The ending is told when it is decided; giving back what the job holds follows and never delays it.
    """

    def __init__(self, job: Job, outbox: Outbox, station: Station) -> None:
        self.job = job
        self.outbox = outbox
        self.state = State.WAITING
        self.outcome: Outcome | None = None
        self._station = station
        self._transfer: bytes | None = None
        self._note: TransferNote | None = None
        self._verified_tokens = 0
        self._adding: Pending[Admission] | None = None
        self._refused = False
        self._tokens = 0
        self._cached_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._deadline = self._loop.call_later(job.timeout_s, self._expire)
        self._ended_at: float | None = None
        self._settled_at: float | None = None

    @property
    def key(self) -> JobKey:
        return self.job.key

    @property
    def needs_link(self) -> bool:
        """A transfer of its pages is under way or to come."""
        to_come = self.job.kind is not JobKind.LOCAL and self.state in (State.WAITING, State.ADDING)
        return to_come or self._transfer is not None

    def begin(self) -> None:
        """Check the job and put it before the engine, as soon as no older attempt at its request holds anything."""
        first = self._station.legs.put(self)
        log.info("job.begin", job=str(self.key), kind=self.job.kind.value, tokens=len(self.job.tokens), waits=not first)
        try:
            self._check()
        except HeadraceError as error:
            self.end(Outcome.FAILED, error)
        else:
            if first:
                self.proceed()

    def proceed(self) -> None:
        """Nothing of an older attempt is left here, and what that one had verified is in the prefix cache."""
        self._move(State.ADDING)
        self._adding = self._station.engine.call(self._add, self._added)

    def sampled(self, sampled: Sampled) -> None:
        """The engine sampled a token."""
        first = self._tokens == 0
        self._tokens += 1
        if first:
            self._first_sampled(sampled)
        self.outbox.token(
            self.key,
            self.job.choice,
            sampled.position,
            sampled.token,
            sampled.cached_tokens if first else 0,
            logprob=sampled.logprob,
            prompt_logprobs=sampled.prompt_logprobs,
        )

    def finished(self, finished: Finished) -> None:
        """The engine ended the job."""
        self.end(finished.outcome, finished.error)

    def progressed(self, progress: Progress) -> None:
        """The engine computed more of the job's tokens. Only a hand-over cares."""
        return

    def activate(self, first_token: int) -> None:
        """The router knows the first token. Only an intake cares."""
        return

    def transfer_closed(self, report: TransferReport) -> None:
        """The fence: from here on no transfer touches the job's pages."""
        self._station.legs.unbind(report.transfer)
        self._transfer = None
        self._settled_at = self._loop.time()
        if self.outcome is None:
            self._closed(report)
        else:
            self._remove()

    def end(self, outcome: Outcome, error: HeadraceError | None = None) -> None:
        """Tell the one ending and begin to give back what the job holds. Later calls do nothing."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._ended_at = self._loop.time()
        self._deadline.cancel()
        if outcome is Outcome.ABORTED:
            self.outbox.forget_tokens(self.key)
        note = self._note if outcome is Outcome.HANDED_OVER else None
        self.outbox.ending(Ending(self.key, outcome, error, note))
        self._station.metrics.jobs.labels(self.job.kind.value, outcome.value).inc()
        self._log_end(outcome, error)
        if self.state is State.WAITING or self._refused:
            self._leave()
        elif self._transfer is None:
            self._remove()
        else:
            self._move(State.DRAINING)
            self._station.carrier.cancel(self._transfer)

    @abstractmethod
    def _check(self) -> None:
        """Raises InvalidRequest if this worker can never run the job."""

    @abstractmethod
    def _admitted(self, admission: Admission) -> None:
        """The engine took the job."""

    def _closed(self, report: TransferReport) -> None:
        """The transfer of a job that is not over closed."""
        raise InternalError(f"Job {self.key} has no transfer.")

    def _add(self, engine: Engine) -> Admission:
        return engine.add(self.job)

    def _added(self, result: Admission | HeadraceError) -> None:
        if self.outcome is not None:
            return
        if isinstance(result, Overloaded):
            self._refuse(result)
        elif isinstance(result, HeadraceError):
            # The engine has nothing of it. What it may have under this key is not this job's to remove.
            self._refused = True
            self.end(Outcome.FAILED, result)
        else:
            self._admitted(result)

    def _refuse(self, error: Overloaded) -> None:
        self._deadline.cancel()
        self.outbox.reply(Busy(self.key, error.retry_after_s or RETRY_AFTER_S))
        log.info("job.refuse", job=str(self.key), kind=self.job.kind.value)
        self._leave()

    def _open(self, transfer: bytes) -> None:
        self._transfer = transfer
        self._station.legs.bind(transfer, self)
        self._station.traces.leave(self.outbox.router, self.key, transfer)

    def _first_sampled(self, sampled: Sampled) -> None:
        self._cached_tokens = sampled.cached_tokens
        self._station.metrics.prompt_tokens.inc(self.job.prompt_len)
        self._count_lookup(sampled.cached_tokens)

    def _count_lookup(self, cached_tokens: int) -> None:
        self._station.metrics.cache_queries.inc(len(self.job.tokens))
        self._station.metrics.cache_hits.inc(cached_tokens)

    def _remaining_s(self) -> float:
        """What is left of the job's time."""
        return max(0.0, self._deadline.when() - self._loop.time())

    def _expire(self) -> None:
        self.end(
            Outcome.FAILED,
            DeadlineExceeded(f"The {self.job.kind.value} job took longer than the {self.job.timeout_s:g} s it had."),
        )

    def _remove(self) -> None:
        self._move(State.REMOVING)
        if self._adding is not None:
            self._adding.withdraw()
        key, verified_tokens = self.key, self._verified_tokens
        self._station.engine.call(lambda engine: engine.remove(key, verified_tokens), self._removed)

    def _removed(self, _: HeadraceError | None) -> None:
        """The pages are back, or died with the engine."""
        self._leave()

    def _leave(self) -> None:
        self._move(State.GONE)
        # One clock for all processes of a machine: what a cancel takes, and where, is read off these stamps.
        at = self._loop.time()
        log.debug("job.gone", job=str(self.key), ended=self._ended_at, settled=self._settled_at, at=at)
        self._station.legs.drop(self)

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InternalError(f"Job {self.key} cannot move from {self.state.value} to {state.value}.")
        self.state = state

    def _log_end(self, outcome: Outcome, error: HeadraceError | None) -> None:
        log.info(
            "job.end",
            job=str(self.key),
            kind=self.job.kind.value,
            outcome=outcome.value,
            error=None if error is None else error.kind.code,
            state=self.state.value,
            sampled=self._tokens,
            cached=self._cached_tokens,
            ms=round((self._loop.time() - self._begun) * 1000),
        )
