"""The account of each request: metrics, the kept explanation, one log line at its ending. Never content."""

from itertools import pairwise

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.fleet import WorkerRef
from headrace.core.waterfall import Stage
from headrace.router.history import History
from headrace.router.life import Life
from headrace.router.retries import AttemptFailed, Fault
from headrace.router.run import Run
from headrace.telemetry.metrics import RouterMetrics

log = structlog.get_logger()


class Account:
    """Told of tokens, retries and endings by the conductor."""

    def __init__(self, metrics: RouterMetrics, history: History) -> None:
        self._metrics = metrics
        self._history = history
        # An alert on the first of a kind needs to have seen none before.
        for fault in Fault:
            metrics.retries.labels(fault.value)

    def tokens(self, run: Run, count: int) -> None:
        """`count` new tokens went to the caller."""
        gap = run.life.token()
        if gap is not None:
            for _ in range(count):
                self._metrics.itl.observe(gap / count)
            return
        self._metrics.ttft.observe(run.life.ttft_ms / 1000)
        if run.answer is not None:
            self._metrics.cached_tokens.inc(run.answer.usage.cached_tokens)

    def retried(self, run: Run, failure: AttemptFailed) -> None:
        run.life.again()
        if failure.loss is None:
            self._count(failure.fault)
        else:
            absence = failure.loss.absence
            absence.then(lambda: self._count(Fault.LOST if absence.dead else Fault.CUT))
        log.info(
            "request.retried",
            request=run.request.id,
            cause=failure.fault.value,
            worker=str(failure.worker),
            error=failure.error.message,
        )

    def relocated(self, run: Run, worker: WorkerRef) -> None:
        """The run goes on elsewhere with the pages that it has on `worker`."""
        self._metrics.relocations.inc()
        log.info("request.relocated", request=run.request.id, worker=str(worker), tokens=len(run.prompt))

    def _count(self, cause: Fault) -> None:
        self._metrics.retries.labels(cause.value).inc()

    def ended(self, run: Run, outcome: str, error: HeadraceError | None = None) -> None:
        """The request's one ending. outcome: a finish reason, an error's code, or "cancelled"."""
        run.outcome = outcome
        run.life.end()
        self._metrics.endings.labels(outcome).inc()
        self._metrics.e2e.observe(run.life.seconds)
        if run.answer is not None and run.answer.finish_reason is not None:
            self._metrics.success.labels(run.answer.finish_reason.value).inc()
            self._observe_times(run.life)
        self._observe_waits(run.life)
        self._history.record(run.explanation())
        self._log(run, error)

    def _observe_times(self, life: Life) -> None:
        """The times of a finished answer. One that needed nothing from a worker has none."""
        if life.routed_at is None or life.first_token_at is None or life.last_token_at is None:
            return
        queued = sum(part.seconds for part in life.parts if part.stage is Stage.QUEUE and part.attempt == 1)
        self._metrics.times.queue.observe(queued)
        self._metrics.times.prefill.observe(life.first_token_at - life.routed_at)
        self._metrics.times.decode.observe(life.last_token_at - life.first_token_at)
        self._metrics.times.inference.observe(life.last_token_at - life.routed_at)

    def _observe_waits(self, life: Life) -> None:
        """Grants and commits that came; those that were waited for in vain are told by their attempt's failure."""
        for part, after in pairwise(life.parts):
            if (part.stage, after.stage) == (Stage.GRANT, Stage.PREFILL):
                self._metrics.times.grant.observe(part.seconds)
            elif (part.stage, after.stage) == (Stage.COMMIT, Stage.FIRST_DECODE):
                self._metrics.times.commit.observe(part.seconds)

    def _log(self, run: Run, error: HeadraceError | None) -> None:
        route = run.routes[-1] if run.routes else None
        usage = None if run.answer is None else run.answer.usage
        log.info(
            "request.ended",
            request=run.request.id,
            model=run.request.model,
            outcome=run.outcome,
            prompt_tokens=len(run.prompt),
            generated_tokens=0 if usage is None else usage.completion_tokens,
            cached_tokens=0 if usage is None else usage.cached_tokens,
            attempts=len(run.routes),
            prefill=str(route.prefill) if route is not None and route.prefill is not None else "",
            decode=str(route.decode) if route is not None else "",
            ttft_ms=round(run.life.ttft_ms, 1),
            total_ms=round(run.life.seconds * 1000, 1),
            **({} if error is None else {"error": error.message}),
        )
