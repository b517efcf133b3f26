"""Outbox: what one router has yet to read, merged so that a slow reader costs a bounded amount of memory.

Owns the unread reports of one attachment. It knows no engine and no jobs. Everything here happens on the event
loop; putting never waits, so a router that stops reading stops nobody else.
"""

import asyncio
from dataclasses import dataclass, field

from headrace.core.errors import HeadraceError, Overloaded
from headrace.core.fleet import Load
from headrace.core.jobs import (
    Busy,
    Committed,
    Ending,
    Events,
    Frozen,
    Granted,
    JobKey,
    Met,
    Report,
    TokenEvent,
    Welcome,
)
from headrace.core.logprobs import TokenLogprob

Reply = Granted | Committed | Busy | Met | Welcome

# Replies and endings that one router may leave unread. A router this far behind is gone or broken.
MAX_UNREAD = 8192


@dataclass(slots=True)
class _Run:
    """Unread tokens of one job, whose positions follow one another."""

    choice: int
    position: int
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprob, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def event(self, key: JobKey) -> TokenEvent:
        tokens, logprobs = tuple(self.tokens), tuple(self.logprobs)
        return TokenEvent(key, self.choice, self.position, tokens, self.cached_tokens, logprobs, self.prompt_logprobs)


class Outbox:
    """The reports of one attachment. Steps that nobody has read yet merge into one Events."""

    def __init__(self, router: str, load: Load) -> None:
        self.router = router
        self._load = load
        self._draining = False
        self._replies: list[Reply] = []
        self._runs: dict[JobKey, _Run] = {}
        self._endings: list[Ending] = []
        self._frozen: list[Frozen] = []
        self._load_due = False
        self._sent_load = load
        self._closed = False
        self._error: HeadraceError | None = None
        self._wake = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    def reply(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._put()

    def token(
        self,
        key: JobKey,
        choice: int,
        position: int,
        token: int,
        cached_tokens: int = 0,
        *,
        logprob: TokenLogprob | None = None,
        prompt_logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """One more token of a job; positions of a job come without gaps. logprob: for every token of a job or for
        none. cached_tokens, prompt_logprobs: with its first token only."""
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = _Run(choice, position, cached_tokens, prompt_logprobs)
        run.tokens.append(token)
        if logprob is not None:
            run.logprobs.append(logprob)
        self._put()

    def ending(self, ending: Ending) -> None:
        self._endings.append(ending)
        self._put()

    def frozen(self, frozen: Frozen) -> None:
        """It is read behind all tokens of its job."""
        self._frozen.append(frozen)
        self._put()

    def forget_tokens(self, key: JobKey) -> None:
        """Drop the unread tokens of a job that its router gave up."""
        self._runs.pop(key, None)

    def update(self, load: Load, *, draining: bool, settled: bool) -> None:
        """The worker's load now. It rides with the next Events; alone it is sent when a router would choose
        otherwise because of it, or when the worker has `settled` (is idle) at it."""
        changed = draining != self._draining or _choice(load) != _choice(self._sent_load)
        self._load, self._draining = load, draining
        if changed or (settled and load != self._sent_load):
            self._load_due = True
            self._put()

    def close(self, error: HeadraceError | None = None) -> None:
        """No more will be put. Without an error what is unread can still be taken; with one it is dropped."""
        if self._closed:
            return
        self._closed, self._error = True, error
        if error is not None:
            self._drop()
        self._wake.set()

    async def take(self) -> tuple[Report, ...]:
        """Wait for news and take all of it, an Events behind replies. Empty once closed. Raises `close`'s error."""
        while True:
            if self._error is not None:
                raise self._error
            if reports := self._collect():
                return reports
            if self._closed:
                return ()
            self._wake.clear()
            await self._wake.wait()

    def _put(self) -> None:
        if not self._closed and len(self._replies) + len(self._endings) > MAX_UNREAD:
            self.close(Overloaded(f"The router left more than {MAX_UNREAD} reports unread."))
        self._wake.set()

    def _collect(self) -> tuple[Report, ...]:
        reports: list[Report] = list(self._replies)
        if self._runs or self._endings or self._load_due:
            tokens = tuple(run.event(key) for key, run in self._runs.items())
            reports.append(Events(tokens, tuple(self._endings), self._load, self._draining))
            self._sent_load = self._load
        reports += self._frozen
        self._drop()
        return tuple(reports)

    def _drop(self) -> None:
        self._replies.clear()
        self._runs.clear()
        self._endings.clear()
        self._frozen.clear()
        self._load_due = False


def _choice(load: Load) -> tuple[int, int, int, int, str, tuple[str, ...]]:
    """The part of a load that changes where a router sends its next job, or has it move one."""
    return (load.running, load.waiting, load.credits, load.quarantined_slabs, load.unready, load.crowded)
