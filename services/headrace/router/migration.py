"""Migration: how a running request goes on elsewhere: with its pages where that is cheaper, else computing them again.

Asked by `move`, or by a worker's end. Every way out is one of three: the request stays, it has another attempt that
brings its pages, or AttemptFailed says that it moves without them.
"""

from headrace.core.errors import DeadlineExceeded, Unavailable
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Frozen
from headrace.router.account import Account
from headrace.router.dispatch import Dispatch
from headrace.router.leg import Move
from headrace.router.move import Mover
from headrace.router.relocation import Relocation
from headrace.router.retries import AttemptFailed, Fault
from headrace.router.run import Run


class Migration:
    """States nothing of its own: what a request is in the midst of is in its attempt."""

    def __init__(self, dispatch: Dispatch, mover: Mover, account: Account) -> None:
        self._dispatch = dispatch
        self._mover = mover
        self._account = account

    def leave(self, run: Run, move: Move) -> None:
        """The request is to leave a worker, if it is still there and another has room. Raises AttemptFailed."""
        attempt, worker = run.attempt, move.worker
        coming = isinstance(attempt, Relocation) and attempt.waits_for(worker)
        if attempt is None or not (coming or attempt.route.decode == worker):
            self._mover.settled(run)
        elif coming or attempt.shipment is not None:
            if not move.with_pages:
                raise _moved(worker, attempt.route.decode)
        elif not self._dispatch.elsewhere(run, worker, move.room):
            self._mover.settled(run)
        elif move.with_pages and attempt.decoding and (shipment := self._dispatch.shipment(run, worker)):
            attempt.freeze(shipment)
        else:
            raise _moved(worker)

    def go_on(self, run: Run, frozen: Frozen) -> None:
        """The answer stands still: its next attempt brings its pages. Raises AttemptFailed."""
        attempt = run.attempt
        assert attempt is not None
        assert run.answer is not None
        source = attempt.route.decode
        # The last token has no KV, one that waited for pages has none at all.
        whole = frozen.tokens == len(run.prompt) + len(run.answer.tokens) - 1
        if attempt.shipment is None or not whole:
            raise _moved(source)
        run.attempt = self._dispatch.relocate(run, attempt)
        self._account.relocated(run, source)
        run.attempt.start()

    def excused(self, failure: AttemptFailed) -> AttemptFailed:
        """A failure at a worker that leaves, or at the other end of its transfer, is nobody's fault."""
        involved = {failure.worker, *failure.suspects}
        error = failure.error
        passing = error.kind.retryable and not isinstance(error, DeadlineExceeded)
        if failure.fault is Fault.FAILED and passing and any(map(self._dispatch.leaving, involved)):
            return AttemptFailed(error, failure.worker, Fault.MOVED)
        return failure


def _moved(worker: WorkerRef, slow: WorkerRef | None = None) -> AttemptFailed:
    """It goes neither back to the worker that was rid of it, nor to the one that was `slow` to take its pages."""
    error = Unavailable(f"Worker {worker} gives its requests to others.", retry_after_s=1.0)
    return AttemptFailed(error, worker, Fault.MOVED, (worker, slow or worker))
