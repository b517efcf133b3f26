"""EngineLoop: the one thread that drives an engine, and the two ways across to the event loop.

Owns the thread, its inbox of commands and the order of what comes back. It knows no jobs, routers or
transfers. Commands go in through the inbox; results and step outputs come out on the event loop in the order in
which they happened, so a job's admission is always seen before its first token.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import Counter, Histogram

from headrace.core.errors import HeadraceError, InternalError, Unavailable, WorkerLost
from headrace.engine.engine import Engine, StepOutput
from headrace.engine.pace import Pace

log = structlog.get_logger()

T = TypeVar("T")

# Steps whose output the event loop has not taken yet. More would pile up memory and delay aborts.
_MAX_STEPS_AHEAD = 4
_JOIN_S = 30.0


class Pending(Generic[T]):
    """A command in the inbox: `command` runs on the engine thread, `done` on the event loop."""

    def __init__(self, command: Callable[[Engine], T], done: Callable[[T | HeadraceError], None]) -> None:
        self._command = command
        self._done = done
        self.withdrawn = False

    def withdraw(self) -> None:
        """Do not run it if it has not run yet; then `done` is not called."""
        self.withdrawn = True

    def run(self, engine: Engine) -> Callable[[], None]:
        """Run it and return the call that tells its outcome. What it raises beyond that is a dead engine."""
        try:
            return partial(self._done, self._command(engine))
        except InternalError:
            raise
        except HeadraceError as error:
            return partial(self._done, error)

    def refuse(self, error: HeadraceError) -> None:
        if not self.withdrawn:
            self._done(error)


class EngineLoop:
    """Runs `engine` on a thread of its own until `stop` or until it fails.

    on_step gets every step's output, on_failure the error of a dead engine, once; both on the event loop.
    check_after_s: how long the engine must have been idle before its pool is recounted, once per idle period.
    pace: how fast steps computed prompts lately. All methods are called on the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_step: Callable[[StepOutput], None],
        on_failure: Callable[[BaseException], None],
        step_seconds: Histogram,
        pool_checks: Counter,
        check_after_s: float,
    ) -> None:
        self._engine = engine
        self._on_step = on_step
        self._on_failure = on_failure
        self._step_seconds = step_seconds
        self._pool_checks = pool_checks
        self._check_after_s = check_after_s
        self._inbox: queue.SimpleQueue[Pending[Any] | None] = queue.SimpleQueue()
        self._running: Pending[Any] | None = None
        self._ahead = threading.Semaphore(_MAX_STEPS_AHEAD)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._closed: HeadraceError | None = None
        self._fatal: BaseException | None = None
        self._idle = False
        self._busy_since: float | None = None
        self.pace = Pace()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def busy_s(self) -> float:
        """Seconds that the engine has been in its present step or command; 0 while it waits for one."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def call(self, command: Callable[[Engine], T], done: Callable[[T | HeadraceError], None]) -> Pending[T]:
        """Run `command` between two steps, then `done` with its result or the HeadraceError it raised.

        InternalError and any other exception is a dead engine. With a dead engine `done` gets an error.
        """
        pending = Pending(command, done)
        if self._closed is None:
            self._inbox.put(pending)
        else:
            self._loop.call_soon(pending.refuse, self._closed)
        return pending

    async def stop(self) -> None:
        """End the thread after the step it is in. Commands still queued are refused."""
        if self._closed is None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join, _JOIN_S)
            self._close(Unavailable("The worker is stopping."))
        if self._thread.is_alive():
            log.error("engine.stuck", waited_s=_JOIN_S)

    def _run(self) -> None:
        try:
            while self._serve_inbox():
                self._step()
        except BaseException as error:
            self._fatal = error
        if self._fatal is not None:
            self._loop.call_soon_threadsafe(self._bury, self._fatal)

    def _serve_inbox(self) -> bool:
        """Run what is in the inbox, waiting for something when there is nothing to step. False: stop."""
        outcomes: list[Callable[[], None]] = []
        try:
            while (command := self._next(wait=self._idle)) is not None:
                self._idle = False
                if not command.withdrawn:
                    self._running, self._busy_since = command, time.monotonic()
                    outcomes.append(command.run(self._engine))
                    self._running = None
            return False
        except queue.Empty:
            return True
        finally:
            self._busy_since = None
            if outcomes:
                self._loop.call_soon_threadsafe(self._tell, outcomes)

    def _next(self, *, wait: bool) -> Pending[Any] | None:
        if not wait:
            return self._inbox.get_nowait()
        try:
            return self._inbox.get(timeout=self._check_after_s)
        except queue.Empty:
            self._engine.check()
            self._pool_checks.inc()
            return self._inbox.get()

    def _step(self) -> None:
        start = time.perf_counter()
        self._busy_since = time.monotonic()
        output = self._engine.step()
        self._busy_since = None
        if not output.idle:
            seconds = time.perf_counter() - start
            self._step_seconds.observe(seconds)
            self.pace = self.pace.after(output.prompt_tokens, seconds)
        self._idle = output.idle
        self._ahead.acquire()
        self._loop.call_soon_threadsafe(self._deliver, output)

    def _deliver(self, output: StepOutput) -> None:
        self._ahead.release()
        self._tell([partial(self._on_step, output)])

    def _tell(self, outcomes: list[Callable[[], None]]) -> None:
        """Hand news to the worker. Failing to take them would leave jobs without an end: that ends the engine."""
        for outcome in outcomes:
            try:
                outcome()
            except Exception as error:
                log.exception("step.undelivered")
                self._fatal = error
                self._inbox.put(None)

    def _bury(self, error: BaseException) -> None:
        log.critical("engine.dead", error=repr(error), exc_info=error)
        self._close(WorkerLost("The worker's engine died.", remedy="The worker restarts; try again."))
        self._on_failure(error)

    def _close(self, error: HeadraceError) -> None:
        self._closed = error
        if self._running is not None:
            self._running.refuse(error)
        try:
            while True:
                if (pending := self._inbox.get_nowait()) is not None:
                    pending.refuse(error)
        except queue.Empty:
            return
