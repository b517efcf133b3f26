"""One job at one worker, as the conductor holds it: what may be sent to it and what comes from it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Busy, Committed, Ending, Frozen, Granted, JobKey, TokenEvent
from headrace.router.absence import Absence


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker's stream broke. absence: whether it comes back."""

    error: HeadraceError
    absence: Absence


@dataclass(frozen=True, slots=True)
class Unsent:
    """The worker's stream broke before it took the job."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Left:
    """The worker's stream ended after it had said that it is leaving."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Stalled:
    """The worker is there and does not get on. The job is not over for it: it wants to be aborted."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Late:
    """What the request waits for before it begins is not waited for any longer."""


@dataclass(frozen=True, slots=True)
class Over:
    """The request as a whole must end."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Move:
    """The request is to leave `worker`. with_pages: they may go along; if not, nothing is waited for.

    room: credits that the worker where it goes on must have.
    """

    worker: WorkerRef
    with_pages: bool = False
    room: int = 1


Word = Granted | Committed | Busy | TokenEvent | Ending | Frozen | Lost | Unsent | Left | Stalled


@dataclass(frozen=True, slots=True)
class Notice:
    """A word about a leg, or about the request as a whole. excused: an ending that was heard while the leg's worker,
    or the one at its other end, was leaving; how it is with them later says nothing about it."""

    leg: "Leg | None"
    word: Word | Over | Move | Late
    excused: bool = False


Inbox = asyncio.Queue[Notice]


class Leg:
    """Made by an attachment. ended: the worker has had its last word on the job, or never got it. leaving: whether its
    worker, or the one at its other end, has said that it leaves."""

    def __init__(
        self,
        key: JobKey,
        worker: WorkerRef,
        inbox: Inbox,
        on_activate: Callable[[JobKey, int], None],
        on_abort: Callable[[JobKey, bool], None],
        *,
        on_freeze: Callable[[JobKey], None],
        leaving: Callable[[], bool],
    ) -> None:
        self.key = key
        self.worker = worker
        self.ended = asyncio.Event()
        self.leaving = leaving
        self._inbox = inbox
        self._on_activate = on_activate
        self._on_abort = on_abort
        self._on_freeze = on_freeze
        self._abandoned = False

    def activate(self, first_token: int) -> None:
        """Start the granted decode job."""
        if not self.ended.is_set():
            self._on_activate(self.key, first_token)

    def freeze(self) -> None:
        """Have the job stop where it stands; Frozen or its ending comes."""
        if not self.ended.is_set():
            self._on_freeze(self.key)

    def abort(self) -> None:
        """End the job at the worker and hear no more of it but `ended`. Twice is once."""
        if not self.ended.is_set() and not self._abandoned:
            self._on_abort(self.key, False)
        self._abandoned = True

    def peer_died(self) -> None:
        """After `abort`: the worker at the job's other end is dead, so this one need not wait for it to let go."""
        self._on_abort(self.key, True)

    def tell(self, word: Word) -> None:
        """The attachment's side: a report about this job came."""
        if isinstance(word, Busy | Ending | Lost | Unsent | Left):
            self.ended.set()
        if not self._abandoned:
            self._inbox.put_nowait(Notice(self, word, excused=isinstance(word, Ending) and self.leaving()))
