"""The engine's thread: order across the border, withdrawal, death, recounting when idle."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from headrace.core.errors import HeadraceError, InternalError, InvalidRequest, Unavailable, WorkerLost
from headrace.core.fleet import Load
from headrace.engine.engine import Engine, StepOutput
from headrace.telemetry.metrics import WorkerMetrics
from headrace.worker.loop import EngineLoop

DEADLINE_S = 5.0
IDLE = StepOutput((), (), (), (), (), Load(), idle=True)
BUSY = StepOutput((), (), (), (), (), Load(), idle=False)


class ScriptedEngine:
    """Of an engine, the two methods that the loop calls by itself."""

    def __init__(self, step: Callable[[], StepOutput]) -> None:
        self.step = step
        self.checks: list[int] = []
        self.checked = threading.Event()
        self.sound = True

    def check(self) -> None:
        self.checks.append(threading.get_ident())
        self.checked.set()
        if not self.sound:
            raise InternalError("A page is lost.")


class Told:
    """What came back over the border, in order."""

    def __init__(self) -> None:
        self.news: list[object] = []
        self.failures: list[BaseException] = []
        self._more = asyncio.Event()

    def put(self, what: object) -> None:
        self.news.append(what)
        self._more.set()

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self._more.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def looped(engine: ScriptedEngine, check_after_s: float = 60.0) -> AsyncIterator[tuple[EngineLoop, Told]]:
    told, metrics = Told(), WorkerMetrics()
    loop = EngineLoop(
        cast(Engine, engine),
        on_step=told.put,
        on_failure=told.failed,
        step_seconds=metrics.step_seconds,
        pool_checks=metrics.pool_checks,
        check_after_s=check_after_s,
    )
    loop.start()
    try:
        yield loop, told
    finally:
        await loop.stop()


async def test_results_come_before_the_step_that_follows_them() -> None:
    async with looped(ScriptedEngine(lambda: IDLE)) as (loop, told):
        await told.until(lambda: told.news == [IDLE])
        loop.call(lambda _: "one", told.put)
        await told.until(lambda: told.news == [IDLE, "one", IDLE])


async def test_a_refused_command_tells_its_error_and_the_engine_lives() -> None:
    refusal = InvalidRequest("No.")

    def refuse(_: Engine) -> str:
        raise refusal

    async with looped(ScriptedEngine(lambda: IDLE)) as (loop, told):
        loop.call(refuse, told.put)
        loop.call(lambda _: "after", told.put)
        await told.until(lambda: "after" in told.news)
        assert refusal in told.news
        assert told.failures == []


async def test_a_withdrawn_command_is_neither_run_nor_told() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Engine) -> str:
        entered.set()
        assert leave.wait(DEADLINE_S)
        return "held"

    ran: list[str] = []
    async with looped(ScriptedEngine(lambda: IDLE)) as (loop, told):
        loop.call(hold, told.put)
        assert await asyncio.to_thread(entered.wait, DEADLINE_S)
        loop.call(lambda _: ran.append("ran"), told.put).withdraw()
        loop.call(lambda _: "last", told.put)
        leave.set()
        await told.until(lambda: "last" in told.news)
        assert ran == []
        assert None not in told.news


@pytest.mark.parametrize("where", ["step", "command", "broken invariant", "delivery"])
async def test_a_dead_engine_answers_every_command_with_an_error(where: str) -> None:
    alive = True

    def step() -> StepOutput:
        if not alive and where == "step":
            raise RuntimeError("dead")
        return IDLE

    def kill(_: Engine) -> str:
        nonlocal alive
        alive = False
        if where == "command":
            raise RuntimeError("dead")
        if where == "broken invariant":
            raise InternalError("dead")
        return "killed"

    def take(result: object) -> None:
        told.put(result)
        if where == "delivery":
            raise RuntimeError("dead")

    async with looped(ScriptedEngine(step)) as (loop, told):
        loop.call(kill, take)
        await told.until(lambda: told.failures)
        assert [str(error) for error in told.failures] == ["dead"]
        loop.call(lambda _: "late", told.put)
        await told.until(lambda: isinstance(told.news[-1], WorkerLost))
        assert len(told.failures) == 1


async def test_commands_behind_the_one_that_kills_are_told() -> None:
    entered, leave = threading.Event(), threading.Event()

    def die(_: Engine) -> str:
        entered.set()
        assert leave.wait(DEADLINE_S)
        raise RuntimeError("dead")

    async with looped(ScriptedEngine(lambda: IDLE)) as (loop, told):
        first: list[str | HeadraceError] = []
        loop.call(die, first.append)
        assert await asyncio.to_thread(entered.wait, DEADLINE_S)
        loop.call(lambda _: "behind", told.put)
        leave.set()
        await told.until(lambda: told.failures)
        assert isinstance(first[0], WorkerLost)
        assert isinstance(told.news[-1], WorkerLost)
        assert len(first) == 1


async def test_stopping_refuses_what_is_queued() -> None:
    async with looped(ScriptedEngine(lambda: IDLE)) as (loop, told):
        await loop.stop()
        loop.call(lambda _: "late", told.put)
        await told.until(lambda: isinstance(told.news[-1], Unavailable))
        assert told.failures == []


async def test_the_pool_is_recounted_once_an_idle_period_on_the_engine_thread() -> None:
    engine = ScriptedEngine(lambda: IDLE)
    async with looped(engine, check_after_s=0.0) as (loop, told):
        for period in range(1, 4):
            assert await asyncio.to_thread(engine.checked.wait, DEADLINE_S)
            assert len(engine.checks) == period
            engine.checked.clear()
            loop.call(lambda _: "wake", told.put)
        assert threading.get_ident() not in engine.checks


async def test_a_pool_that_does_not_add_up_is_a_dead_engine() -> None:
    engine = ScriptedEngine(lambda: IDLE)
    engine.sound = False
    async with looped(engine, check_after_s=0.0) as (_, told):
        await told.until(lambda: told.failures)
        assert isinstance(told.failures[0], InternalError)


async def test_steps_do_not_run_far_ahead_of_the_event_loop() -> None:
    stepped = 0
    behind = threading.Event()

    def step() -> StepOutput:
        nonlocal stepped
        stepped += 1
        if stepped == 5:
            behind.set()
        return BUSY if stepped < 100 else IDLE

    async with looped(ScriptedEngine(step)) as (_, told):
        assert behind.wait(DEADLINE_S)  # the event loop is held up here, on purpose
        assert stepped == 5
        await told.until(lambda: len(told.news) == 100)
