"""How requests stand with the fleet, whichever router they come to: retries that are left, prompts that are refused.

Decides from memory, and evens memory out with the other routers'. While they cannot be reached it goes on alone.
"""

import asyncio
import contextlib
import time

import structlog

from headrace.core.commons import Commons, Deposit
from headrace.core.errors import Unavailable
from headrace.router.deadly import Deadly
from headrace.router.retry_budget import RetryBudget

log = structlog.get_logger()

_LEAVE_S = 2.0


class Standing:
    """router: its name. refuse_s: how long prompts on which workers died are refused. every_s: between exchanges."""

    def __init__(self, commons: Commons, router: str, *, refuse_s: float, every_s: float = 1.0) -> None:
        self.retries = RetryBudget()
        self.deadly = Deadly(refuse_s, time.monotonic)
        self._commons = commons
        self._router = router
        self._every_s = every_s
        self._sequence = 0
        self._unanswered: Deposit | None = None
        self._alone = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to exchange."""
        self._task = asyncio.create_task(self._run(), name="standing")

    async def stop(self) -> None:
        """Give back what was not spent, if that can be done at once."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.retries.earned += self.retries.left
        self.retries.left = self.retries.most
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.exchange()

    async def exchange(self) -> None:
        """Once, now. What could not be left is left the next time."""
        if self._unanswered is None:
            self._sequence += 1
            self._unanswered = Deposit(self.retries.take_earned(), self.retries.wanted, self.deadly.news())
        try:
            share = await self._commons.exchange(self._router, self._sequence, self._unanswered)
        except Unavailable as error:
            self._note(alone=True, reason=error.message)
            self.retries.keep_earned()
            return
        self._note(alone=False, reason="")
        self._unanswered = None
        self.retries.add(share.retries)
        self.deadly.learn(share.refused)

    async def _run(self) -> None:
        while True:
            try:
                await self.exchange()
            except Exception:
                log.exception("standing.defect")
            await asyncio.sleep(self._every_s)

    def _note(self, *, alone: bool, reason: str) -> None:
        if alone == self._alone:
            return
        self._alone = alone
        if alone:
            log.warning("standing.alone", reason=reason)
        else:
            log.info("standing.shared")
