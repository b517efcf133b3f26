"""The conductor of every request: prepare, route, drive the attempt, text out, try again, end exactly once.

Owns each request's life. However it ends, every leg still alive is aborted and its credits are back.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

import structlog

from headrace.core.errors import HeadraceError, InternalError, RouterLost, Unavailable, WorkerLost
from headrace.core.fleet import WorkerState
from headrace.core.generation import Chunk, FinishReason, GenerateRequest
from headrace.core.jobs import Frozen, TokenEvent
from headrace.core.lifecycle import Phase
from headrace.core.route import Explanation
from headrace.router.account import Account
from headrace.router.admission import Admission
from headrace.router.attempt import Attempt
from headrace.router.dispatch import Dispatch
from headrace.router.ledger import Ledger
from headrace.router.leg import Move, Notice, Over
from headrace.router.life import Life
from headrace.router.migration import Migration
from headrace.router.models import Models
from headrace.router.move import Mover
from headrace.router.options import RouterOptions
from headrace.router.prepare import context_of, opening
from headrace.router.reading import read
from headrace.router.retries import AttemptFailed, Fault, Retries
from headrace.router.run import Run
from headrace.router.runs import Runs
from headrace.router.standing import Standing

log = structlog.get_logger()


class Conductor:
    """states: the fleet's workers now."""

    def __init__(
        self,
        *,
        models: Models,
        states: Callable[[], tuple[WorkerState, ...]],
        dispatch: Dispatch,
        admission: Admission,
        ledger: Ledger,
        account: Account,
        standing: Standing,
        mover: Mover,
        options: RouterOptions,
    ) -> None:
        self._models = models
        self._states = states
        self._dispatch = dispatch
        self._admission = admission
        self._ledger = ledger
        self._account = account
        self._mover = mover
        self._migration = Migration(dispatch, mover, account)
        self._options = options
        self._standing = standing
        self._runs = Runs()
        self._draining = False

    @property
    def running(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All that run, oldest first."""
        return tuple(self._runs)

    @property
    def draining(self) -> bool:
        return self._draining

    def explanation(self, request: str) -> Explanation | None:
        """A running request's life so far."""
        run = self._runs.get(request)
        return None if run is None else run.explanation()

    async def conduct(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """The request's chunks; see `Inference.generate`."""
        run = self._enter(request)
        try:
            await self._prepare(run)
            while (chunk := await self._next(run)) is not None:
                if chunk.prompt_logprobs and run.answer is not None:
                    chunk = await asyncio.to_thread(run.answer.spelled, chunk)
                run.unread = True
                yield chunk
                run.unread = False
        except HeadraceError as error:
            self._fail(run, error)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            await self._cancel(run)
            raise
        except Exception as error:
            log.exception("request.defect", request=request.id)
            defect = InternalError("The router failed on this request.", remedy=f"Its log names {request.id}.")
            self._fail(run, defect)
            raise defect from error
        finally:
            self._leave(run)

    async def stop(self, grace_s: float) -> None:
        """Refuse what comes, let what runs finish within `grace_s`, then end it with a clear error."""
        self._draining = True
        if await self._runs.over(grace_s):
            return
        error = RouterLost("The router is stopping and the request did not finish in time.", remedy="Try again.")
        self._admission.close(error)
        for run in self._runs:
            self._call_off(run, error)
        if not await self._runs.over(self._options.drain_s):
            log.warning("router.callers_left", requests=len(self._runs))

    def _call_off(self, run: Run, error: HeadraceError) -> None:
        """End the request. A caller that waits for its next word is told at once, another one when it asks for it."""
        run.inbox.put_nowait(Notice(None, Over(error)))
        if run.unread:
            if not run.life.ended:
                run.over = error
                self._fail(run, error)
            self._leave(run)

    def _enter(self, request: GenerateRequest) -> Run:
        if self._draining:
            raise RouterLost("The router is stopping and takes no new requests.", remedy="Try another one.")
        self._runs.require_new(request.id)
        model = self._models.get(request.model)
        self._standing.retries.earn()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_s
        run = Run(request, model, deadline, Life(request.id), Retries(self._standing.retries))
        # One timer a request: one for each word that it waits for would be two more operations a token.
        run.alarm = loop.call_at(deadline, self._call_off, run, run.late)
        self._runs.enter(run)
        return run

    async def _prepare(self, run: Run) -> None:
        reading = await read(run.model.text, run.request)
        run.prompt = reading.tokens
        self._standing.deadly.check(run.fingerprint)
        context = context_of(run.model, self._states())
        run.sampling, run.answer = opening(run.model, run.request, reading, context)

    async def _next(self, run: Run) -> Chunk | None:
        """The next chunk; None after the last."""
        assert run.answer is not None
        if run.over is not None:
            raise run.over
        if run.answer.finished and not run.life.ended:
            # A resume point behind which nothing was left.
            self._done(run)
            return run.answer.closing()
        while not run.life.ended:
            try:
                if run.attempt is None:
                    await self._open(run)
                assert run.attempt is not None
                chunk = self._take(run, run.attempt, await self._hear(run, run.attempt))
            except AttemptFailed as failure:
                self._again(run, failure)
                continue
            if chunk is not None:
                return chunk
        return None

    async def _open(self, run: Run) -> None:
        """Start the next attempt. A request that lost its worker is told so, if no other can take it."""
        if run.routes:
            await self._cleared(run)
        try:
            run.attempt = await self._dispatch.open(run)
        except RouterLost:
            raise  # another router may have more luck
        except Unavailable as error:
            if isinstance(run.retries.last, WorkerLost):
                raise WorkerLost(f"{run.retries.last.message} {error.message}", retry_after_s=1.0) from error
            raise
        run.attempt.start()

    async def _cleared(self, run: Run) -> None:
        """It is known that the request may meet another worker. Raises WorkerLost if too many died on it."""
        try:
            async with asyncio.timeout_at(run.deadline):
                await run.retries.cleared()
        except TimeoutError:
            raise run.late from run.retries.last

    async def _hear(self, run: Run, attempt: Attempt) -> Notice:
        """The next word about the request. Raises AttemptFailed if no grant comes in time."""
        if attempt.granted:
            return await run.inbox.get()
        try:
            async with asyncio.timeout_at(attempt.begun + self._options.grant_s):
                return await run.inbox.get()
        except TimeoutError:
            raise attempt.silent() from None

    def _take(self, run: Run, attempt: Attempt, notice: Notice) -> Chunk | None:
        """What a word means for the caller."""
        assert run.answer is not None
        if isinstance(notice.word, Over):
            raise notice.word.error
        if isinstance(notice.word, Move):
            self._migration.leave(run, notice.word)
            return None
        match attempt.take(notice):
            case FinishReason() as reason:
                chunk: Chunk | None = run.answer.end(reason)
            case TokenEvent() as event:
                chunk = run.answer.accept(event)
            case Frozen() as frozen:
                self._migration.go_on(run, frozen)
                return None
            case None:
                return None
        if chunk is not None and chunk.token_ids:
            self._account.tokens(run, len(chunk.token_ids))
            self._migration.heard(run)
        if run.answer.finished:
            self._done(run)
        elif chunk is not None:
            attempt.go_on(run.answer.tokens[-1])
        return chunk

    def _again(self, run: Run, failure: AttemptFailed) -> None:
        """Back to routing, unless the failure ends the request."""
        self._close(run)
        if failure.fault is Fault.BUSY:
            seconds = failure.error.retry_after_s or self._options.policy.retry_after_s
            self._ledger.cool(failure.worker, seconds)
            self._admission.wake_after(seconds)
        run.retries.weigh(failure)
        self._account.retried(run, failure)

    def _done(self, run: Run) -> None:
        self._close(run)
        assert run.answer is not None
        assert run.answer.finish_reason is not None
        run.life.to(Phase.DONE)
        self._account.ended(run, run.answer.finish_reason.value)

    def _fail(self, run: Run, error: HeadraceError) -> None:
        self._close(run)
        if run.retries.deadly:
            self._standing.deadly.record(run.fingerprint)
        if not run.life.ended:
            run.life.to(Phase.FAILED)
            self._account.ended(run, error.kind.code, error)

    async def _cancel(self, run: Run) -> None:
        """The caller left: abort, and while pages may be in flight wait until both workers have let go of them."""
        attempt, run.unread = run.attempt, False
        self._close(run)
        if run.life.ended:
            return
        try:
            if attempt is not None and attempt.pages_in_flight and run.life.may(Phase.DRAINING):
                run.life.to(Phase.DRAINING)
                await attempt.drained(self._options.drain_s)
        finally:
            run.life.to(Phase.CANCELLED)
            self._account.ended(run, "cancelled")

    def _close(self, run: Run) -> None:
        if run.attempt is not None:
            run.attempt.close()
            run.attempt = None
        if run.key is not None:
            self._ledger.release(run.key)

    def _leave(self, run: Run) -> None:
        """Twice is once: who does not read has left before the caller's end of the stream is closed."""
        self._close(run)
        self._mover.settled(run)
        if run.alarm is not None:
            run.alarm.cancel()
        self._runs.leave(run)
