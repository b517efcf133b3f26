"""Migration: how a running request goes on elsewhere: with its pages where that is cheaper, else computing them again.

Asked by `move`, or by a worker's end. Every way out is one of three: the request stays, it has another attempt that
brings its pages, or AttemptFailed says that it moves without them.
"""

from headrace.core.errors import Unavailable
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
            self._mover.settled(run, worker)
        elif coming or attempt.shipment is not None:
            if not move.with_pages:
                raise _moved(worker, attempt.route.decode)
        elif move.with_pages and attempt.decoding and (shipment := self._dispatch.shipment(run, worker)):
            attempt.freeze(shipment)
        elif self._dispatch.has_route(run, worker, move.room):
            run.relieved = run.relieved or not move.with_pages
            raise _moved(worker)
        else:
            self._mover.settled(run, worker)

    def heard(self, run: Run) -> None:
        """A token of the run came."""
        attempt = run.attempt
        if self._mover.arrived(run) and isinstance(attempt, Relocation):
            assert attempt.route.prefill is not None
            self._account.relocated(run, attempt.route.prefill)

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
        run.attempt.start()


def _moved(worker: WorkerRef, slow: WorkerRef | None = None) -> AttemptFailed:
    """It goes neither back to the worker that was rid of it, nor to the one that was `slow` to take its pages."""
    error = Unavailable(f"Worker {worker} gives its requests to others.", retry_after_s=1.0)
    return AttemptFailed(error, worker, Fault.MOVED, (worker, slow or worker))
