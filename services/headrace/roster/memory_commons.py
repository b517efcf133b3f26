"""MemoryCommons: what the routers of one process share."""

import time
from collections.abc import Callable

from headrace.core.commons import Deposit, Share


class MemoryCommons:
    """Commons without a server. most: retries saved up. clock: seconds."""

    def __init__(self, *, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._left = float(most)
        self._until: dict[bytes, float] = {}
        self._last: dict[str, tuple[int, float]] = {}

    async def exchange(self, router: str, sequence: int, deposit: Deposit) -> Share:
        """See Commons."""
        now = self._clock()
        for fingerprint, seconds in deposit.deaths:
            self._until[fingerprint] = max(now + seconds, self._until.get(fingerprint, 0.0))
        self._until = {each: until for each, until in self._until.items() if until > now}
        if self._last.get(router, (0,))[0] < sequence:
            self._last[router] = sequence, self._grant(deposit)
        return Share(self._last[router][1], tuple((each, until - now) for each, until in self._until.items()))

    def _grant(self, deposit: Deposit) -> float:
        self._left = min(float(self._most), self._left + deposit.earned)
        granted = max(0.0, min(self._left // 1.0, deposit.wanted))
        self._left -= granted
        return granted
