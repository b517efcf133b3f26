"""Blame: what the bad end of a leg says of its workers: who is lost, who is suspected, who is excused.

Pure, but for the verdict on a worker that says itself that it is dead. Knows no attempts.
"""

from headrace.core.errors import DeadlineExceeded, HeadraceError, WorkerLost
from headrace.core.fleet import WorkerRef
from headrace.router.absence import Absence
from headrace.router.leg import Left, Lost, Stalled, Unsent
from headrace.router.retries import AttemptFailed, Fault, Loss


def parted(worker: WorkerRef, parting: Lost | Stalled | Unsent | Left, *, held: bool) -> AttemptFailed:
    """Its stream broke or stands still. Whether a worker whose stream broke is dead is not known yet; one that stands
    still is not. held: it had begun with the job, as far as its router can tell."""
    match parting:
        case Lost(error, absence):
            return AttemptFailed(error, worker, Fault.CUT, losses=(Loss(absence, held),))
        case Stalled(error):
            return AttemptFailed(error, worker, Fault.CUT)
        case Unsent(error):
            return AttemptFailed(error, worker, Fault.AWAY)
        case Left(error):
            return AttemptFailed(error, worker, Fault.MOVED)


def failed(
    worker: WorkerRef, error: HeadraceError, suspects: tuple[WorkerRef, ...], *, held: bool, excused: bool
) -> AttemptFailed:
    """It said so. A worker that says it is lost (its engine died) is; for all else any of the suspects may be to blame,
    but for what comes of one that leaves. held: as above. excused: one of them was leaving when this was said."""
    if isinstance(error, WorkerLost):
        absence = Absence(worker)
        absence.gone()
        return AttemptFailed(error, worker, Fault.LOST, losses=(Loss(absence, held),))
    return _weighed(AttemptFailed(error, worker, Fault.FAILED, suspects), excused=excused)


def given_up(worker: WorkerRef, *, excused: bool) -> AttemptFailed:
    """It aborted the job, and its router had not asked for that."""
    return _weighed(
        AttemptFailed(WorkerLost(f"Worker {worker} gave the request up."), worker, Fault.FAILED), excused=excused
    )


def silent(worker: WorkerRef, *, excused: bool) -> AttemptFailed:
    """A decode worker did not answer its submit in time: it has begun nothing."""
    error = WorkerLost(f"Worker {worker} did not answer in time whether it takes the request.")
    return _weighed(AttemptFailed(error, worker, Fault.FAILED, (worker,)), excused=excused)


def _weighed(failure: AttemptFailed, *, excused: bool) -> AttemptFailed:
    passing = failure.error.kind.retryable and not isinstance(failure.error, DeadlineExceeded)
    return AttemptFailed(failure.error, failure.worker, Fault.MOVED) if excused and passing else failure
