"""The account of each request: metrics, the kept explanation, one log line at its ending. Never content."""

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.fleet import WorkerRef
from headrace.router.history import History
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
        self._metrics.endings.labels(outcome).inc()
        self._metrics.e2e.observe(run.life.seconds)
        if run.answer is not None and run.answer.finish_reason is not None:
            self._metrics.success.labels(run.answer.finish_reason.value).inc()
        self._history.record(run.explanation())
        self._log(run, error)

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
