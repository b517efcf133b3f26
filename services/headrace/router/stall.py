"""A stall: from the word that a worker is not ready until the word that it is. Knows no worker and no jobs."""

import asyncio
from collections.abc import Callable


class Stall:
    """on_lasting: called once in a stall that lasts limit_s seconds, with why the worker is not ready."""

    def __init__(self, limit_s: float, on_lasting: Callable[[str], None]) -> None:
        self._limit_s = limit_s
        self._on_lasting = on_lasting
        self._alarm: asyncio.TimerHandle | None = None

    def see(self, unready: str) -> None:
        """The worker's last word on why it is not ready; "" if it is, or is gone."""
        if unready and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(self._limit_s, self._on_lasting, unready)
        elif not unready and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
