"""Fetching: the attempt whose first worker takes a prefix from another's cache before it begins.

An import job there and an export job at the holder, of the same tokens, move the pages; the attempt's own jobs follow
and find them. Whatever goes wrong between the two workers costs the request time only: what did not come is computed.
"""

import asyncio
from dataclasses import replace
from functools import partial

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.errors import InternalError, TakenUp, TransferFailed, WorkerLost
from headrace.core.fleet import Role, WorkerRef
from headrace.core.generation import FinishReason
from headrace.core.jobs import Busy, Ending, Frozen, Granted, Job, JobKey, JobKind, Outcome, TokenEvent
from headrace.core.route import Pull, Route
from headrace.core.waterfall import Stage
from headrace.router import blame
from headrace.router.attempt import Attempt, Footing
from headrace.router.leg import Late, Left, Leg, Lost, Move, Notice, Over, Stalled, Unsent, Word
from headrace.router.pulls import PullEnd, Pulls
from headrace.router.retries import AttemptFailed, Fault

# What a pull gets at least, and what it gets beyond four times what it was expected to take.
_LEAST_S = 0.1
_MORE_S = 1.0
_GONE = frozenset({Fault.LOST, Fault.CUT, Fault.AWAY, Fault.MOVED})


def importing(job: Job, key: JobKey, pull: Pull, page_tokens: int) -> Job:
    """The job that takes in the prefix of `job`. page_tokens: of the holder's pages."""
    return replace(
        job,
        key=key,
        kind=JobKind.IMPORT,
        tokens=job.tokens[: pull.tokens],
        prompt_len=min(job.prompt_len, pull.tokens),
        hashes=job.hashes[: pull.tokens // BLOCK_TOKENS],
        peer=pull.holder,
        peer_block_tokens=page_tokens,
    )


def patience_s(pull: Pull) -> float:
    """How long it is waited for: no longer than computing would take, and less if it takes far longer than expected."""
    return max(_LEAST_S, min(pull.compute_ms / 1000, _MORE_S + 4 * pull.fetch_ms / 1000))


class FetchingAttempt(Attempt):
    """imports: the job that takes in the prefix, under a key of its own."""

    def __init__(self, job: Job, route: Route, footing: Footing, *, imports: Job, pulls: Pulls) -> None:
        super().__init__(job, route, footing)
        assert route.pull is not None
        self._pull = route.pull
        self._imports = imports
        self._pulls = pulls
        self._fetching = False
        self._import: Leg | None = None
        self._export: Leg | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._coming = 0
        self._name = (route.reader, imports.hashes[-1])
        self._joined = False
        # By the holder's own word its pages were not taken. Why, it cannot tell.
        self._untaken = False
        self._late, self._told = Notice(None, Late()), Notice(None, Late())

    @property
    def granted(self) -> bool:
        """What it waits for while it fetches has a limit of its own."""
        return self._fetching or super().granted

    def start(self) -> None:
        """Have the prefix fetched, or wait for it if it is on its way for another request. Raises AttemptFailed."""
        self._life.enter(Stage.PULL)
        self._fetching = True
        self._joined = self._pulls.join(self._name, partial(self._inbox.put_nowait, self._told))
        if not self._joined:
            self._import = self._send(self.route.reader, self._imports)
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(patience_s(self._pull), self._inbox.put_nowait, self._late)

    def take(self, notice: Notice) -> TokenEvent | FinishReason | Frozen | None:
        try:
            return self._take(notice)
        except AttemptFailed as failure:
            if self._untaken and failure.worker == self.route.reader and failure.fault in _GONE:
                self._pulls.excuse(self._pull.holder)
            raise

    def _take(self, notice: Notice) -> TokenEvent | FinishReason | Frozen | None:
        leg, word = notice.leg, notice.word
        if notice is self._late or notice is self._told:
            if self._fetching and notice is self._late:
                self._waited_in_vain()
            elif self._fetching:
                self._go_on(PullEnd.SHARED)
            return None
        if leg is None or isinstance(word, Over | Move | Late) or leg not in (self._import, self._export):
            return super().take(notice)
        self._note(leg, word)
        if self._fetching and leg is self._import:
            self._heard_reader(leg, notice)
        elif self._fetching:
            self._heard_holder(word)
        return None

    def close(self) -> None:
        if self._fetching:
            self._over(PullEnd.GIVEN_UP)
        self._abort()
        super().close()

    def _held(self, leg: Leg) -> bool:
        """Who only takes in pages has not met the prompt yet."""
        return leg is not self._import and super()._held(leg)

    def _note(self, leg: Leg, word: Word) -> None:
        if isinstance(word, Ending) and word.outcome is Outcome.HANDED_OVER and word.note is not None:
            self._life.note(Role.DECODE if leg is self._import else Role.PREFILL, word.note)

    def _heard_reader(self, leg: Leg, notice: Notice) -> None:
        match notice.word:
            case Granted() as granted:
                self._fetch(granted)
            case Ending(outcome=Outcome.HANDED_OVER):
                self._go_on(PullEnd.PULLED)
            case Lost() | Stalled() | Unsent() | Left() as parting:
                self._tell_of_death(parting, self._export)
                raise blame.parted(leg.worker, parting, held=self._held(leg))
            case Busy():
                self._go_on(PullEnd.BUSY)
            case Ending(error=TakenUp() | WorkerLost() as error):
                # Not of the pages but of the request, which another router took up, or of the reader, which is lost.
                raise blame.failed(leg.worker, error, (), held=False, excused=notice.excused)
            case Ending(error=TransferFailed()) if self._export is not None:
                self._go_on(PullEnd.FAILED, self._pull.holder)
            case Ending():
                self._go_on(PullEnd.FAILED, self.route.reader)

    def _waited_in_vain(self) -> None:
        """For the reader's grant, or then for the pages. Who waits for another request's pull has asked nobody."""
        at = self._pull.holder if self._export is not None else self.route.reader
        self._go_on(PullEnd.LATE, None if self._joined else at)

    def _heard_holder(self, word: Word) -> None:
        """That it has handed over, the reader says itself."""
        match word:
            case Busy():
                self._go_on(PullEnd.BUSY)
            case Lost() | Stalled() | Unsent() | Left():
                self._tell_of_death(word, self._import)
                self._go_on(PullEnd.FAILED, self._pull.holder)
            case Ending(outcome=outcome) if outcome is not Outcome.HANDED_OVER:
                self._untaken = True
                self._go_on(PullEnd.FAILED, self._pull.holder)

    def _fetch(self, granted: Granted) -> None:
        ticket = granted.ticket
        if (ticket.source, ticket.target) != (self._pull.holder, self.route.reader):
            raise InternalError(f"A ticket from {ticket.source} to {ticket.target} came for another pull.")
        if self._export is not None:
            return
        self._coming = self._pull.tokens - granted.resident_tokens
        exports = replace(self._imports, kind=JobKind.EXPORT, ticket=ticket, peer=None, timeout_s=self._remaining())
        try:
            self._export = self._submit(self._pull.holder, exports, self._inbox)
        except WorkerLost:
            self._go_on(PullEnd.FAILED, self._pull.holder)

    def _go_on(self, end: PullEnd, failed_at: WorkerRef | None = None) -> None:
        """The attempt begins, with what came. Its first job replaces the import, whose verified pages it finds."""
        self._over(end, failed_at)
        if end is not PullEnd.PULLED:  # its Ending is all that the export has left to say
            self._abort()
        self.begun = asyncio.get_running_loop().time()
        self._job = replace(self._job, timeout_s=self._remaining())
        super().start()

    def _over(self, end: PullEnd, failed_at: WorkerRef | None = None) -> None:
        self._fetching = False
        if self._alarm is not None:
            self._alarm.cancel()
        if not self._joined:
            self._pulls.leave(self._name)
        tokens = self._coming if end is PullEnd.PULLED else 0
        self._pulls.over(self._job.key.request, self._pull, end, tokens, failed_at=failed_at)

    def _abort(self) -> None:
        for leg in (self._import, self._export):
            if leg is not None:
                leg.abort()

    def _tell_of_death(self, parting: Lost | Stalled | Unsent | Left, other: Leg | None) -> None:
        """Once it is known that one end died, the other one need not wait for it to let go."""
        if other is None or not isinstance(parting, Lost):
            return
        absence = parting.absence

        def told() -> None:
            if absence.dead:
                other.peer_died()

        absence.then(told)
