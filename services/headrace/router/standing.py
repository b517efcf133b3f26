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
        """Give back what was not spent, if that can be done at once; requests earn anew what could not be. Twice is
        once."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._give_back()

    async def exchange(self) -> None:
        """Once, now. What could not be left is left the next time."""
        if self._unanswered is None:
            self._leave(Deposit(self.retries.take_earned(), self.retries.wanted, self.deadly.news()))
        await self._settle()

    async def _give_back(self) -> None:
        """An exchange that was cut short comes first: it may have brought a share."""
        if self._unanswered is None or await self._settle():
            self._leave(Deposit(self.retries.give_back(), 0.0, self.deadly.news()))
            await self._settle()

    def _leave(self, deposit: Deposit) -> None:
        self._sequence += 1
        self._unanswered = deposit

    async def _settle(self) -> bool:
        """Whether the last deposit was answered, now or by a repetition."""
        assert self._unanswered is not None
        try:
            share = await self._commons.exchange(self._router, self._sequence, self._unanswered)
        except Unavailable as error:
            self._note(alone=True, reason=error.message)
            self.retries.keep_earned()
            return False
        self._note(alone=False, reason="")
        self._unanswered = None
        self.retries.add(share.retries)
        self.deadly.learn(share.refused)
        return True

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
