"""Legs: the jobs of this worker, each in one explicit state from submit to gone.

Owns the states, the table of legal moves, and what all kinds of job share: the deadline, the one ending, the way
out. It knows no streams and no threads; every method runs on the event loop. What a kind does between its
admission and its end is in `local`, `handover` and `intake`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import structlog

from headrace.core.errors import DeadlineExceeded, HeadraceError, InternalError, Overloaded
from headrace.core.jobs import Busy, Ending, Job, JobKey, Outcome
from headrace.engine.engine import Admission, Engine, Finished, Progress, Sampled
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import Carrier, TransferReport
from headrace.worker.loop import EngineLoop, Pending
from headrace.worker.outbox import Outbox
from headrace.worker.tickets import TicketOffice

log = structlog.get_logger()

RETRY_AFTER_S = 0.25


class State(Enum):
    """Where a job stands. After its ending was told it is REMOVING, DRAINING or GONE, never back."""

    ADDING = "adding"  # before the engine
    RECEIVING = "receiving"  # decode: pages on their way, or all here and not yet activated
    RUNNING = "running"  # in the engine's batches
    SENDING = "sending"  # prefill: first token told, pages on their way out
    DRAINING = "draining"  # over, but a transfer may still touch its pages: waiting for the fence (I6)
    REMOVING = "removing"  # over, the engine is giving its pages back
    GONE = "gone"


_OUT = frozenset({State.DRAINING, State.REMOVING})

MOVES: dict[State, frozenset[State]] = {
    State.ADDING: frozenset({State.RECEIVING, State.RUNNING, State.REMOVING, State.GONE}),
    State.RECEIVING: _OUT | {State.RUNNING},
    State.RUNNING: _OUT | {State.SENDING},
    State.SENDING: _OUT,
    State.DRAINING: frozenset({State.REMOVING}),
    State.REMOVING: frozenset({State.GONE}),
    State.GONE: frozenset(),
}


class Legs:
    """The jobs that still hold something here. A job leaves when it is GONE."""

    def __init__(self) -> None:
        self._by_key: dict[JobKey, Leg] = {}
        self._by_transfer: dict[bytes, Leg] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator["Leg"]:
        return iter(tuple(self._by_key.values()))

    def find(self, key: JobKey) -> "Leg | None":
        return self._by_key.get(key)

    def sending_or_receiving(self, transfer: bytes) -> "Leg | None":
        return self._by_transfer.get(transfer)

    def put(self, leg: "Leg") -> None:
        assert leg.key not in self._by_key
        self._by_key[leg.key] = leg
        self._empty.clear()

    def drop(self, leg: "Leg") -> None:
        del self._by_key[leg.key]
        if not self._by_key:
            self._empty.set()

    def bind(self, transfer: bytes, leg: "Leg") -> None:
        self._by_transfer[transfer] = leg

    def unbind(self, transfer: bytes) -> None:
        del self._by_transfer[transfer]

    async def empty(self) -> None:
        """Return once there is no job left."""
        await self._empty.wait()


@dataclass(frozen=True, slots=True)
class Station:
    """What a leg works with."""

    engine: EngineLoop
    carrier: Carrier
    tickets: TicketOffice
    metrics: WorkerMetrics
    legs: Legs = field(default_factory=Legs)


class Leg(ABC):
    """One job here. It ends once: by itself, by its router, by its deadline or by a failure (I3).

    The ending is told when it is decided; giving back what the job holds follows and never delays it.
    """

    def __init__(self, job: Job, outbox: Outbox, station: Station) -> None:
        self.job = job
        self.outbox = outbox
        self.state = State.ADDING
        self.outcome: Outcome | None = None
        self._station = station
        self._transfer: bytes | None = None
        self._verified_tokens = 0
        self._adding: Pending[Admission] | None = None
        self._tokens = 0
        self._cached_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._deadline = self._loop.call_later(job.timeout_s, self._expire)

    @property
    def key(self) -> JobKey:
        return self.job.key

    def begin(self) -> None:
        """Check the job and put it before the engine."""
        self._station.legs.put(self)
        log.info("job.begin", job=str(self.key), kind=self.job.kind.value, tokens=len(self.job.tokens))
        try:
            self._check()
        except HeadraceError as error:
            self.end(Outcome.FAILED, error)
        else:
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
        if self.outcome is None:
            self._closed(report)
        else:
            self._remove()

    def end(self, outcome: Outcome, error: HeadraceError | None = None) -> None:
        """Tell the one ending and begin to give back what the job holds. Later calls do nothing."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._deadline.cancel()
        if outcome is Outcome.ABORTED:
            self.outbox.forget_tokens(self.key)
        self.outbox.ending(Ending(self.key, outcome, error))
        self._station.metrics.jobs.labels(self.job.kind.value, outcome.value).inc()
        self._log_end(outcome, error)
        if self._transfer is None:
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
            self.end(Outcome.FAILED, result)
        else:
            self._admitted(result)

    def _refuse(self, error: Overloaded) -> None:
        self._deadline.cancel()
        self.outbox.reply(Busy(self.key, error.retry_after_s or RETRY_AFTER_S))
        log.info("job.refuse", job=str(self.key), kind=self.job.kind.value)
        self._move(State.GONE)
        self._station.legs.drop(self)

    def _open(self, transfer: bytes) -> None:
        self._transfer = transfer
        self._station.legs.bind(transfer, self)

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
        self._move(State.GONE)
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
