"""One attempt at a request: its one or two legs, in the order in which they must be told things.

Knows jobs, grants and activations; knows no text, and does not decide whether to try again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from headrace.core.errors import HeadraceError, InternalError, Overloaded, WorkerLost
from headrace.core.fleet import WorkerRef
from headrace.core.generation import FinishReason
from headrace.core.jobs import Busy, Ending, Frozen, Granted, Job, JobKey, JobKind, Outcome, TokenEvent
from headrace.core.lifecycle import Phase
from headrace.core.route import Route
from headrace.core.ticket import Ticket
from headrace.router.absence import Absence
from headrace.router.ledger import Ledger
from headrace.router.leg import Inbox, Left, Leg, Lost, Move, Notice, Over, Stalled, Unsent
from headrace.router.life import Life
from headrace.router.retries import AttemptFailed, Fault, Loss

log = structlog.get_logger()

Submit = Callable[[WorkerRef, Job, Inbox], Leg]

_FINISH = {Outcome.STOP: FinishReason.STOP, Outcome.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class Shipment:
    """How an answer goes on elsewhere with its pages. key: of the attempt, for which the credit is spent."""

    key: JobKey
    route: Route


class Attempt:
    """job: the request as one local job. deadline: loop time by which the request must have ended, begun:
    when the attempt was made. shipment: its answer was told to stop where it stands, and is to go on by this."""

    def __init__(
        self, job: Job, route: Route, *, submit: Submit, ledger: Ledger, inbox: Inbox, life: Life, deadline: float
    ) -> None:
        self.route = route
        self._job = job
        self._submit = submit
        self._ledger = ledger
        self._inbox = inbox
        self._life = life
        self._deadline = deadline
        self.begun = asyncio.get_running_loop().time()
        self._prefill: Leg | None = None
        self._decode: Leg | None = None
        self._decoding = False
        self._got_first = False
        self.shipment: Shipment | None = None

    @property
    def granted(self) -> bool:
        """Whether the decode worker has answered; a local job needs no grant."""
        return self.route.prefill is None or self._prefill is not None

    @property
    def decoding(self) -> bool:
        """The worker that writes the answer has all the pages, and told a token."""
        return self._decoding

    @property
    def pages_in_flight(self) -> bool:
        return self._prefill is not None and not self._decoding

    def start(self) -> None:
        """Send the first job: all of it to one worker, or its decode side. Raises AttemptFailed."""
        if self.route.prefill is None:
            self._decode = self._send(self.route.decode, replace(self._job, kind=JobKind.LOCAL))
            self._life.to(Phase.PREFILLING)
        else:
            # The prompt's logprobs are prefill's to report; asked for them too, decode would use nothing cached.
            sampling = replace(self._job.sampling, prompt_logprobs=None)
            job = replace(self._job, kind=JobKind.DECODE, peer=self.route.prefill, sampling=sampling)
            self._decode = self._send(self.route.decode, job)

    def take(self, notice: Notice) -> TokenEvent | FinishReason | Frozen | None:
        """What a word about a leg means: tokens, an ending, that the answer stands still, or nothing for it. Raises
        AttemptFailed."""
        leg, word = notice.leg, notice.word
        if leg is None or isinstance(word, Over | Move) or leg not in (self._prefill, self._decode):
            return None
        match word:
            case Granted() as granted:
                self._grant(granted)
                return None
            case TokenEvent() as event:
                return self._tokens(leg, event)
            case Busy(retry_after_s=retry_after_s):
                error = Overloaded(f"Worker {leg.worker} had no room.", retry_after_s=retry_after_s)
                raise AttemptFailed(error, leg.worker, Fault.BUSY)
            case Frozen() as frozen:
                return frozen if leg is self._decode else None
            case Lost() | Stalled() | Unsent() | Left() as parting:
                self._broken(leg, self._parted(leg, parting))
                return None
            case Ending() as ending:
                return self._ended(leg, ending)

    def go_on(self, token: int) -> None:
        """The answer took `token` and is not finished: a first one, from prefill, starts the decode side."""
        if self._prefill is not None and not self._got_first and self._decode is not None:
            self._decode.activate(token)
        self._got_first = True

    def freeze(self, shipment: Shipment) -> None:
        """Have the answer stop where it stands, with its pages; Frozen or an ending comes. The shipment's credit is
        given back with the attempt, unless another has taken it over."""
        assert self._decode is not None
        self.shipment = shipment
        self._decode.freeze()

    def silent(self) -> AttemptFailed:
        """The failure that stands for a decode worker which did not answer its submit in time: it has begun nothing."""
        error = WorkerLost(f"Worker {self.route.decode} did not answer in time whether it takes the request.")
        return AttemptFailed(error, self.route.decode, Fault.FAILED, (self.route.decode,))

    def close(self) -> None:
        """Abort what still lives, on every leg, and give the credits back. Twice is once."""
        for leg in (self._prefill, self._decode):
            if leg is not None:
                leg.abort()
        self._ledger.release(self._job.key)
        if self.shipment is not None:
            self._ledger.release(self.shipment.key)

    async def drained(self, seconds: float) -> None:
        """After `close`: both workers have said that the job is over, or `seconds` passed."""
        try:
            async with asyncio.timeout(seconds):
                for leg in (self._prefill, self._decode):
                    if leg is not None:
                        await leg.ended.wait()
        except TimeoutError:
            log.warning("request.drain_slow", request=self._job.key.request, waited_s=seconds)

    def _grant(self, granted: Granted) -> None:
        assert self.route.prefill is not None
        ticket = granted.ticket
        if (ticket.source, ticket.target) != (self.route.prefill, self.route.decode):
            raise InternalError(f"A ticket from {ticket.source} to {ticket.target} came for another route.")
        if self._prefill is not None:
            return
        self._life.to(Phase.GRANTED)
        self._prefill = self._send(self.route.prefill, self._sending(ticket))
        self._sent()

    def _sending(self, ticket: Ticket) -> Job:
        """The job that brings the pages."""
        return replace(self._job, kind=JobKind.PREFILL, ticket=ticket, timeout_s=self._remaining())

    def _sent(self) -> None:
        """That job is on its way."""
        self._life.to(Phase.PREFILLING)

    def _tokens(self, leg: Leg, event: TokenEvent) -> TokenEvent | None:
        if event.choice != self._job.choice:
            return None
        if not self._got_first:
            self._ledger.computed(self._job.key)
        if leg is self._prefill:
            if self._life.phase is Phase.PREFILLING:
                self._life.to(Phase.TRANSFERRING)
        elif not self._decoding:
            self._decoding = True
            self._life.to(Phase.DECODING)
        return event

    def _ended(self, leg: Leg, ending: Ending) -> FinishReason | None:
        match ending.outcome:
            case Outcome.HANDED_OVER:
                self._ledger.leave(self._job.key, leg.worker)
                return None
            case Outcome.STOP | Outcome.LENGTH:
                return _FINISH[ending.outcome]
            case Outcome.ABORTED:
                error = WorkerLost(f"Worker {leg.worker} gave the request up.")
                self._broken(leg, AttemptFailed(error, leg.worker, Fault.FAILED))
                return None
            case Outcome.FAILED:
                assert ending.error is not None
                self._broken(leg, self._failure(leg, ending.error))
                return None

    def _parted(self, leg: Leg, parting: Lost | Stalled | Unsent | Left) -> AttemptFailed:
        """Whether a worker whose stream broke is dead is not known yet; one that stands still is not."""
        match parting:
            case Lost(error, absence):
                return AttemptFailed(error, leg.worker, Fault.CUT, loss=Loss(absence, self._held(leg)))
            case Stalled(error):
                return AttemptFailed(error, leg.worker, Fault.CUT)
            case Unsent(error):
                return AttemptFailed(error, leg.worker, Fault.AWAY)
            case Left(error):
                return AttemptFailed(error, leg.worker, Fault.MOVED)

    def _failure(self, leg: Leg, error: HeadraceError) -> AttemptFailed:
        """A worker that says it is lost (its engine died) is; for all else either end of a transfer may be to blame."""
        if isinstance(error, WorkerLost):
            absence = Absence(leg.worker)
            absence.gone()
            return AttemptFailed(error, leg.worker, Fault.LOST, loss=Loss(absence, self._held(leg)))
        suspects = tuple(worker for worker in (self.route.prefill, leg.worker) if worker is not None)
        return AttemptFailed(error, leg.worker, Fault.FAILED, suspects)

    def _held(self, leg: Leg) -> bool:
        """Whether its worker has begun with it: a decode side has once it was granted, all others once they left."""
        return leg is not self._decode or self.granted

    def _broken(self, leg: Leg, failure: AttemptFailed) -> None:
        """A leg ended badly, which no longer matters once the other one has all the pages."""
        if leg is self._prefill and self._decoding:
            log.info("leg.lost_after_handover", job=str(leg.key), worker=str(leg.worker), error=str(failure.error))
            return
        raise failure

    def _send(self, worker: WorkerRef, job: Job) -> Leg:
        try:
            return self._submit(worker, job, self._inbox)
        except WorkerLost as error:
            raise AttemptFailed(error, worker, Fault.AWAY) from error

    def _remaining(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())
