"""Crowding: which jobs lost their pages to others, once that has lasted. A worker with room could go on with them.

Owns how long is long. It knows no engine and no routers.
"""

from headrace.core.jobs import JobKey

_AFTER_S = 1.0


class Crowding:
    """Told after each step. after_s: how long jobs must have waited for pages that they had before, whichever they
    were: for less, it is cheaper to wait."""

    def __init__(self, after_s: float = _AFTER_S) -> None:
        self._after_s = after_s
        self._displaced: tuple[JobKey, ...] = ()
        self._since = 0.0

    def see(self, displaced: tuple[JobKey, ...], now: float) -> None:
        """These jobs wait for pages again; `now` in monotonic seconds."""
        if displaced and not self._displaced:
            self._since = now
        self._displaced = displaced

    def crowded(self, now: float) -> tuple[str, ...]:
        """The requests of those that wait, if any have for long; the one that is first served again comes last."""
        if now - self._since < self._after_s:
            return ()
        return tuple(key.request for key in reversed(self._displaced))
