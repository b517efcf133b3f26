"""How long to wait before trying again: doubling, with jitter, up to a limit."""

import asyncio
import random


class Backoff:
    """One series of failures. Call `pause` after each failure and `reset` after a success."""

    def __init__(self, first_s: float = 0.05, most_s: float = 2.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        """The next pause is the first again."""
        self._next_s = self._first_s

    async def pause(self) -> None:
        """Wait between half and all of the current delay, so that many waiters do not return as one."""
        delay = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._most_s)
        await asyncio.sleep(delay)
