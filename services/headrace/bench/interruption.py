"""A measurement that is asked to stop by SIGINT or SIGTERM: broken off where it stands, but nowhere else.

Owns both signals while it lasts. What is made and removed around the measurement is never broken off in its midst.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Made by `interruptible`. Only the first signal counts: what cleans up after it is not disturbed by another."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._heeding = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, and on the main thread, the signal raises what ends the command; so does one that came before."""
        self._heeding = True
        try:
            self.heed()
            yield
        finally:
            self._heeding = False

    def heed(self) -> None:
        """Raise what ends the command, KeyboardInterrupt or SystemExit, if it was asked to stop."""
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self._asked is not None:
            raise SystemExit(128 + self._asked)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = number
            if self._heeding:
                self.heed()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs both signals are the Interruption's; one that nothing heeded ends the command after it."""
    interruption = Interruption()
    former = {number: signal.signal(number, interruption.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
        interruption.heed()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
