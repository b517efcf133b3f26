"""What has killed workers lately: prompts on which two died are refused for a while, before they meet a third."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from headrace.core.errors import WorkerLost


class Deadly:
    """The last `size` fingerprints, each refused for refuse_s seconds. clock: monotonic seconds."""

    def __init__(self, refuse_s: float, clock: Callable[[], float], size: int = 1000) -> None:
        self._refuse_s = refuse_s
        self._clock = clock
        self._size = size
        self._until: OrderedDict[Hashable, float] = OrderedDict()

    def record(self, fingerprint: Hashable) -> None:
        """A request like this has just failed by the deaths of its workers."""
        self._until[fingerprint] = self._clock() + self._refuse_s
        self._until.move_to_end(fingerprint)
        if len(self._until) > self._size:
            self._until.popitem(last=False)

    def check(self, fingerprint: Hashable) -> None:
        """Raises WorkerLost while such requests are refused."""
        left = self._until.get(fingerprint, 0.0) - self._clock()
        if left > 0:
            raise WorkerLost("Workers died on this prompt lately, so it is refused for a while.", retry_after_s=left)
