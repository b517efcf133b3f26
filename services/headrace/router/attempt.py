"""One attempt at a request: its one or two legs, in the order in which they must be told things.

Knows jobs, grants, activations and commits; knows no text, and does not decide whether to try again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from headrace.core.errors import InternalError, Overloaded, WorkerLost
from headrace.core.fleet import Role, WorkerRef
from headrace.core.generation import FinishReason
from headrace.core.jobs import Busy, Committed, Ending, Frozen, Granted, Job, JobKey, JobKind, Outcome, TokenEvent
from headrace.core.lifecycle import Phase
from headrace.core.route import Route
from headrace.core.ticket import Ticket
from headrace.core.waterfall import Stage
from headrace.router import blame
from headrace.router.absence import Absence
from headrace.router.doubt import Doubt
from headrace.router.ledger import Ledger
from headrace.router.leg import Inbox, Left, Leg, Lost, Move, Notice, Over, Stalled, Unsent
from headrace.router.life import Life
from headrace.router.retries import AttemptFailed, Fault

log = structlog.get_logger()

Submit = Callable[[WorkerRef, Job, Inbox], Leg]

_FINISH = {Outcome.STOP: FinishReason.STOP, Outcome.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class Shipment:
    """How an answer goes on elsewhere with its pages. key: of the attempt, for which the credit is spent."""

    key: JobKey
    route: Route


@dataclass(frozen=True, slots=True)
class Footing:
    """What every attempt at one request stands on. submit, ledger: to workers, and of their credits. inbox: where all
    that workers say of the request arrives. deadline: loop time by which it must have ended."""

    submit: Submit
    ledger: Ledger
    inbox: Inbox
    life: Life
    deadline: float


class Attempt:
    """job: the request as one local job. begun: loop time when the attempt was made. shipment: its answer was told to
    stop where it stands, and is to go on by this."""

    def __init__(self, job: Job, route: Route, footing: Footing) -> None:
        self.route = route
        self._job = job
        self._submit = footing.submit
        self._ledger = footing.ledger
        self._inbox = footing.inbox
        self._life = footing.life
        self._deadline = footing.deadline
        self.begun = asyncio.get_running_loop().time()
        self._prefill: Leg | None = None
        self._decode: Leg | None = None
        self._decoding = False
        self._got_first = False
        self._doubt = Doubt(footing.inbox)
        self._absent: Absence | None = None
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
            self._life.enter(Stage.PREFILL)
            self._life.to(Phase.PREFILLING)
        else:
            self._life.enter(Stage.GRANT)
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
            case TokenEvent() as event:
                return self._tokens(leg, event)
            case Granted() as granted:
                self._grant(granted)
            case Committed(note=note):
                self._life.note(Role.DECODE, note)
                self._commit()
            case Busy(retry_after_s=retry_after_s):
                error = Overloaded(f"Worker {leg.worker} had no room.", retry_after_s=retry_after_s)
                raise AttemptFailed(error, leg.worker, Fault.BUSY)
            case Frozen() as frozen:
                return frozen if leg is self._decode else None
            case Lost() | Stalled() | Unsent() | Left() as parting:
                self._broken(notice, leg, blame.parted(leg.worker, parting, held=self._held(leg)))
            case Ending() as ending:
                return self._ended(notice, leg, ending)
        return None

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
        """The failure that stands for a decode worker which did not answer its submit in time."""
        return blame.silent(self.route.decode, excused=self._decode is not None and self._decode.leaving())

    def close(self) -> None:
        """Abort what still lives, on every leg, and give the credits back. Twice is once. Once it is known that one
        of its workers died, the other one hears of that too: it need not wait for the dead one to let go."""
        self._doubt.end()
        legs = [leg for leg in (self._prefill, self._decode) if leg is not None]
        for leg in legs:
            leg.abort()
        self._ledger.release(self._job.key)
        if self.shipment is not None:
            self._ledger.release(self.shipment.key)
        absent, self._absent = self._absent, None
        if absent is not None:
            absent.then(partial(_tell_of_death, absent, legs))

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
        self._life.enter(Stage.PREFILL)
        self._life.to(Phase.PREFILLING)

    def _tokens(self, leg: Leg, event: TokenEvent) -> TokenEvent | None:
        if event.choice != self._job.choice:
            return None
        if not self._got_first:
            self._ledger.computed(self._job.key)
        if leg is self._prefill:
            if self._life.phase is Phase.PREFILLING:
                self._life.enter(Stage.COMMIT)
                self._life.to(Phase.TRANSFERRING)
        else:
            self._written()
        return event

    def _written(self) -> None:
        """A token of the decode side came, or of a local job, whose first one is prefill's."""
        if not self._decoding:
            self._decoding = True
            self._life.to(Phase.DECODING)
        match self._life.stage:
            case Stage.PREFILL:
                self._life.enter(Stage.FIRST_DECODE)
            case Stage.COMMIT:
                self._commit()
                self._life.enter(Stage.DECODE)
            case Stage.FIRST_DECODE:
                self._life.enter(Stage.DECODE)

    def _ended(self, notice: Notice, leg: Leg, ending: Ending) -> FinishReason | None:
        match ending.outcome:
            case Outcome.HANDED_OVER:
                self._ledger.leave(self._job.key, leg.worker)
                if ending.note is not None:
                    self._life.note(Role.PREFILL, ending.note)
                return None
            case Outcome.STOP | Outcome.LENGTH:
                return _FINISH[ending.outcome]
            case Outcome.ABORTED:
                self._broken(notice, leg, blame.given_up(leg.worker, excused=notice.excused))
                return None
            case Outcome.FAILED:
                assert ending.error is not None
                ends = tuple(worker for worker in (self.route.prefill, self.route.decode) if worker is not None)
                held, excused = self._held(leg), notice.excused
                self._broken(notice, leg, blame.failed(leg.worker, ending.error, ends, held=held, excused=excused))
                return None

    def _held(self, leg: Leg) -> bool:
        """Whether its worker has begun with it: a decode side has once it was granted, all others once they left."""
        return leg is not self._decode or self.granted

    def _broken(self, notice: Notice, leg: Leg, failure: AttemptFailed) -> None:
        """A leg ended badly, which does not matter if it is prefill's and the decode side has all the pages."""
        if leg is self._prefill and self._got_first and self._doubt.bears(notice, failure):
            return
        failure = self._doubt.resolved(failure)
        if failure.losses:
            # It may turn out to be a death, of which the other worker is to hear.
            self._absent = failure.losses[0].absence
        raise failure

    def _commit(self) -> None:
        """The decode side has all pages and the first token."""
        if not self._doubt.committed:
            self._doubt.commit()
            self._life.enter(Stage.FIRST_DECODE)

    def _send(self, worker: WorkerRef, job: Job) -> Leg:
        try:
            return self._submit(worker, job, self._inbox)
        except WorkerLost as error:
            raise AttemptFailed(error, worker, Fault.AWAY) from error

    def _remaining(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())


def _tell_of_death(absent: Absence, legs: list[Leg]) -> None:
    for leg in legs:
        if absent.dead and leg.worker != absent.worker:
            leg.peer_died()
