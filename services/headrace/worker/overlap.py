"""Overlap: how long a job's transfer took, and how much of that somebody waited for. One end's view, by its clock.

It knows no tickets and no pages: its leg says what happened, and when is now.
"""

from collections.abc import Callable

from headrace.core.fleet import WorkerRef
from headrace.core.waterfall import TransferNote
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import TransferReport


class Overlap:
    """clock: monotonic seconds. A transfer `begins` once pages can move and is `awaited` once nothing else is left to
    do for its job at this end, either of which may come first; what counts is the first time each is said."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: float | None = None
        self._awaited: float | None = None

    def begins(self) -> None:
        """Pages can move from now on."""
        if self._began is None:
            self._began = self._clock()

    def awaited(self) -> None:
        """From now on somebody waits for the pages."""
        if self._awaited is None:
            self._awaited = self._clock()

    def closed(self, worker: WorkerRef, report: TransferReport, metrics: TransferMetrics) -> TransferNote:
        """The transfer is complete. Counts it and says what became of it."""
        now = self._clock()
        awaited = now if self._awaited is None else self._awaited
        began = awaited if self._began is None else min(self._began, awaited)
        note = TransferNote(worker, report.payload_bytes, report.messages, now - began, now - awaited)
        metrics.exposed.labels(report.side.value).observe(note.exposed_s)
        metrics.overlapped.labels(report.side.value).observe(note.seconds - note.exposed_s)
        return note
