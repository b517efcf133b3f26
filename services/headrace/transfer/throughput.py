"""Throughput: how many bytes a second a worker's peers take, over the time in which any are under way.

Owns the measuring. A transfer that waits for its prompt to be computed has nothing under way and does not count. It
knows no peer and no clock: its callers say what happened, and when.
"""

_NEWEST = 1 / 32
"""Weight of the newest frame. Each one before it weighs less than the next."""

_ENOUGH = 8
"""Frames of pages before anything is said: the first go to peers that have just started, and one stall there would pass
for the link."""


class Throughput:
    """Times are of one clock, in seconds, and do not go back."""

    def __init__(self) -> None:
        self._under_way = 0
        self._since = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self._frames = 0

    @property
    def bytes_s(self) -> float:
        """0 while too little is known. May be read on any thread."""
        seconds = self._seconds
        return self._bytes / seconds if self._frames >= _ENOUGH and seconds > 0.0 else 0.0

    def sent(self, at: float) -> None:
        """A frame is under way."""
        if not self._under_way:
            self._since = at
        self._under_way += 1

    def back(self, nbytes: int, taken_at: float | None) -> None:
        """A frame is not under way any more. taken_at: when its peer took it, if it did."""
        self._under_way -= 1
        if taken_at is None:
            return
        seconds = max(0.0, taken_at - self._since)
        self._bytes += (nbytes - self._bytes) * _NEWEST
        self._seconds += (seconds - self._seconds) * _NEWEST
        self._since = taken_at
        self._frames += nbytes > 0
