"""Contact: for how long this router has been attached to somebody. A router that hears nobody may be cut off itself.

Owns who is attached, as a set. Knows no streams.
"""

from collections.abc import Callable

from headrace.core.fleet import WorkerRef


class Contact:
    """clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attached: set[WorkerRef] = set()
        self._since = 0.0

    def begin(self, worker: WorkerRef) -> None:
        """It is attached."""
        if not self._attached:
            self._since = self._clock()
        self._attached.add(worker)

    def end(self, worker: WorkerRef) -> None:
        """It is not, any more or yet."""
        self._attached.discard(worker)

    def seconds(self) -> float:
        """How long some worker has been attached at every moment up to now; 0 if none is."""
        return self._clock() - self._since if self._attached else 0.0
