"""The life of one request: its phase, every move, the times that matter. Refuses illegal moves.

It is always at one stage: each ends when the next begins, so that all of them together are all of its time.
"""

import time

import structlog

from headrace.core.fleet import Role
from headrace.core.lifecycle import ENDINGS, MOVES, Phase, Transition, advance
from headrace.core.waterfall import AttemptNote, Part, Stage, TransferNote, noted

log = structlog.get_logger()


class Life:
    """begun, routed_at, first_token_at, last_token_at: monotonic seconds; routed_at: when it first was. notes: of its
    transfers so far."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.phase = Phase.RECEIVED
        self.transitions: list[Transition] = []
        self.notes: list[AttemptNote] = []
        self.begun = time.monotonic()
        self.routed_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._parts: list[Part] = []
        self.stage = Stage.PREPARE
        self._attempt = 1
        self._since = self.begun
        self._over_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ENDINGS

    @property
    def seconds(self) -> float:
        """From receipt to now, or to its ending."""
        return self._now - self.begun

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
        if phase is Phase.ROUTED and self.routed_at is None:
            self.routed_at = move.at
        if phase is Phase.DRAINING:
            self.enter(Stage.DRAIN)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every stage so far and its seconds, the present one last."""
        return (*self._parts, Part(self.stage, self._attempt, self._now - self._since))

    def enter(self, stage: Stage, at: float | None = None) -> None:
        """It is at `stage` now, or has been since `at`. What it was at before is over."""
        at = time.monotonic() if at is None else at
        self._parts.append(Part(self.stage, self._attempt, at - self._since))
        self.stage, self._since = stage, at

    def again(self) -> None:
        """Its attempt failed: the next one begins."""
        self.enter(Stage.QUEUE)
        self._attempt += 1

    def note(self, role: Role, note: TransferNote) -> None:
        """One end of the attempt's transfer has said what it saw of it."""
        self.notes.append(noted(self._attempt, role, note))

    def end(self) -> None:
        """Its time is over."""
        self._over_at = time.monotonic()

    def may(self, phase: Phase) -> bool:
        return phase in MOVES[self.phase]

    def token(self) -> float | None:
        """A token came: seconds since the one before, None for the first, which came as the present stage began."""
        now = time.monotonic()
        before, self.last_token_at = self.last_token_at, now
        if before is None:
            self.first_token_at = self._since
            return None
        return now - before

    @property
    def _now(self) -> float:
        return time.monotonic() if self._over_at is None else self._over_at
