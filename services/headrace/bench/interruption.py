"""A measurement that is asked to stop by SIGINT or SIGTERM: broken off where it stands, but nowhere else.

Owns both signals while it lasts. What is made and removed around the measurement is never broken off in its midst.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Between two tries at what cannot be broken off, such as a callback of C. They end soon.
_AGAIN_S = 0.01


class Interruption:
    """Made by `interruptible`. Only the first signal counts: what cleans up after it is not disturbed by another."""

    def __init__(self, unraisable: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        """unraisable: hears of what others raised where nothing can be."""
        self._unraisable = unraisable
        self._asked: int | None = None
        self._heeding = False
        self._raised: BaseException | None = None
        self._again: threading.Thread | None = None
        self._closed = threading.Event()

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
        if self._asked is not None:
            self._raised = KeyboardInterrupt() if self._asked == signal.SIGINT else SystemExit(128 + self._asked)
            raise self._raised

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = number
        if self._heeding and self._raised is None:
            self.heed()

    def on_unraisable(self, lost: "sys.UnraisableHookArgs") -> None:
        """What was raised where nothing can be, as in a callback of C or a finaliser, is raised once more after it."""
        if lost.exc_value is None or lost.exc_value is not self._raised:
            self._unraisable(lost)
            return
        if self._again is None:
            self._again = threading.Thread(target=self._ask_again, name="interruption")
            self._again.start()
        # Last: a signal that falls into this very call raises nothing before, as that would be lost too.
        self._raised = None

    def _ask_again(self) -> None:
        """Until somebody hears it."""
        while self._heeding and not self._closed.wait(_AGAIN_S):
            os.kill(os.getpid(), self._asked or signal.SIGINT)

    def close(self) -> None:
        """From here on it sends no signal."""
        self._closed.set()
        if self._again is not None:
            self._again.join()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs both signals are the Interruption's; one that nothing heeded ends the command after it."""
    unraisable = sys.unraisablehook
    interruption = Interruption(unraisable)
    former = {number: signal.signal(number, interruption.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.unraisablehook = interruption.on_unraisable
    try:
        yield interruption
        interruption.heed()
    finally:
        interruption.close()
        sys.unraisablehook = unraisable
        for number, handler in former.items():
            signal.signal(number, handler)
