"""What has killed workers lately: prompts on which two died are refused for a while, before they meet a third."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace.core.errors import WorkerLost


class Deadly:
    """The last `size` fingerprints, each refused for refuse_s seconds. clock: monotonic seconds."""

    def __init__(self, refuse_s: float, clock: Callable[[], float], size: int = 1000) -> None:
        self._refuse_s = refuse_s
        self._clock = clock
        self._size = size
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._news: set[bytes] = set()

    def record(self, fingerprint: bytes) -> None:
        """A request like this has just failed by the deaths of its workers."""
        self._news.add(fingerprint)
        self._refuse(fingerprint, self._refuse_s)

    def learn(self, refused: Iterable[tuple[bytes, float]]) -> None:
        """Other routers recorded these, and refuse them for so many seconds more."""
        for fingerprint, seconds in refused:
            self._refuse(fingerprint, seconds)

    def news(self) -> tuple[tuple[bytes, float], ...]:
        """What was recorded since this was asked last, with the seconds left."""
        now = self._clock()
        left = tuple((each, self._until[each] - now) for each in sorted(self._news) if each in self._until)
        self._news.clear()
        return tuple((each, seconds) for each, seconds in left if seconds > 0)

    def check(self, fingerprint: bytes) -> None:
        """Raises WorkerLost while such requests are refused."""
        left = self._until.get(fingerprint, 0.0) - self._clock()
        if left > 0:
            raise WorkerLost("Workers died on this prompt lately, so it is refused for a while.", retry_after_s=left)

    def _refuse(self, fingerprint: bytes, seconds: float) -> None:
        self._until[fingerprint] = max(self._clock() + seconds, self._until.get(fingerprint, 0.0))
        self._until.move_to_end(fingerprint)
        if len(self._until) > self._size:
            self._until.popitem(last=False)
