"""Doubt: whether the loss of a prefill worker matters, which depends on whether the decode worker has all the pages.

Owns the wait for the decode worker's word. Knows no legs and no routes.
"""

import asyncio

import structlog

from headrace.router.leg import Inbox, Notice
from headrace.router.retries import AttemptFailed, Fault

log = structlog.get_logger()

# How long to wait for it. A decode worker that has lost its sender says so by itself; the rest of the wait is for one
# that cannot know.
_DOUBT_S = 1.0


class Doubt:
    """committed: the decode side has all pages and the first token, so the prefill side is of no more use."""

    def __init__(self, inbox: Inbox) -> None:
        self.committed = False
        self._inbox = inbox
        self._failure: AttemptFailed | None = None
        self._ends: asyncio.TimerHandle | None = None

    def bears(self, notice: Notice, failure: AttemptFailed) -> bool:
        """Whether the attempt goes on though its prefill side ended so. If that is not known yet it does, and `notice`
        comes again when it should be. A job that never left for its worker has sent nothing; of any other, also where
        the worker says itself that it failed, all that is lacking may be under way."""
        if self.committed:
            log.info("leg.lost_after_handover", worker=str(failure.worker), error=str(failure.error))
            return True
        if self._failure is not None or failure.fault is Fault.AWAY:
            return False
        self._failure = failure
        self._ends = asyncio.get_running_loop().call_later(_DOUBT_S, self._inbox.put_nowait, notice)
        return True

    def resolved(self, failure: AttemptFailed) -> AttemptFailed:
        """What ends the attempt: where something was wrong before, that, and `failure` came of it."""
        return failure if self._failure is None else self._failure.beside(failure)

    def commit(self) -> None:
        """The decode worker has said so."""
        self.committed, self._failure = True, None
        self.end()

    def end(self) -> None:
        """Nobody waits any more."""
        if self._ends is not None:
            self._ends.cancel()
