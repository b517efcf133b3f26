"""The life of one request: its phase, every move, the times that matter. Refuses illegal moves; knows no worker."""

import time

import structlog

from headrace.core.lifecycle import ENDINGS, MOVES, Phase, Transition, advance

log = structlog.get_logger()


class Life:
    """begun, first_token_at: monotonic seconds."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.phase = Phase.RECEIVED
        self.transitions: list[Transition] = []
        self.begun = time.monotonic()
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ENDINGS

    @property
    def seconds(self) -> float:
        """Since receipt."""
        return time.monotonic() - self.begun

    @property
    def ttft_ms(self) -> float:
        """From receipt to the first token; 0 before it."""
        return 0.0 if self.first_token_at is None else (self.first_token_at - self.begun) * 1000

    def to(self, phase: Phase) -> None:
        """Raises InternalError if the table of moves does not know this one."""
        move = advance(self.phase, phase, time.monotonic())
        self.transitions.append(move)
        log.debug("request.phase", request=self.request, before=self.phase.value, after=phase.value)
        self.phase = phase

    def may(self, phase: Phase) -> bool:
        return phase in MOVES[self.phase]

    def token(self) -> float | None:
        """A token came: seconds since the one before, None for the first."""
        now = time.monotonic()
        before, self.last_token_at = self.last_token_at, now
        if before is None:
            self.first_token_at = now
            return None
        return now - before
