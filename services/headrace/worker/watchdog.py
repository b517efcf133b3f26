"""Watchdog: notices that an engine stands still while there is work, and that it goes on again.

Owns the limit and the verdict. It lives on the event loop, so that a thread that hangs cannot take it along; it ends
nothing by itself, since a step that is slow today may finish tomorrow.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Gauge

from headrace.engine.engine import StepOutput

log = structlog.get_logger()

_LOOKS_PER_LIMIT = 4
_LONGEST_LOOK_S = 1.0


class Watchdog:
    """limit_s: how long a step may take, and how long jobs may wait for pages while no step is possible.

    stalled: 1 while there is an obstacle. obstacle: why the engine stands still, in one sentence; "" while it does not.
    """

    def __init__(self, limit_s: float, stalled: Gauge) -> None:
        self._limit_s = limit_s
        self._stalled = stalled
        self._waiting = 0
        self._waiting_since = 0.0
        self.obstacle = ""

    def see(self, output: StepOutput) -> None:
        """A step has ended."""
        if output.stuck and not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting = output.stuck

    async def run(self, busy_s: Callable[[], float], changed: Callable[[], Awaitable[None]]) -> None:
        """Look until cancelled. busy_s: seconds the engine has been in its present step or command, 0 if in none.

        changed: told when the engine stopped or went on.
        """
        while True:
            await asyncio.sleep(min(_LONGEST_LOOK_S, self._limit_s / _LOOKS_PER_LIMIT))
            verdict = self._verdict(busy_s())
            if bool(verdict) == bool(self.obstacle):
                continue
            self.obstacle = verdict
            self._stalled.set(bool(verdict))
            if verdict:
                log.error("engine.stalled", reason=verdict)
            else:
                log.warning("engine.resumed")
            await changed()

    def _verdict(self, busy_s: float) -> str:
        if busy_s > self._limit_s:
            return f"its engine has been in one step for more than {self._limit_s:g} s"
        if self._waiting and time.monotonic() - self._waiting_since > self._limit_s:
            return f"{self._waiting} jobs have waited for KV pages for more than {self._limit_s:g} s without a step"
        return ""
