"""ImportLeg: pages of another worker's prefix cache come into this one's, for the job of the same request that follows.

What is verified is found there, all of it or, where the transfer broke off, its start; nothing else ever is.
"""

from dataclasses import replace

from headrace.core.jobs import JobKind, Outcome
from headrace.engine.engine import Admission, Engine
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.worker.intake import IntakeLeg


class ImportLeg(IntakeLeg):
    """add, receive, grant -> receiving -> all pages verified -> handed over, and found in the prefix cache.

    To the engine it is a decode job that is given up before it is activated.
    """

    def activate(self, first_token: int) -> None:
        """It writes no answer."""

    def _add(self, engine: Engine) -> Admission:
        return engine.add(replace(self.job, kind=JobKind.DECODE))

    def _admitted(self, admission: Admission) -> None:
        super()._admitted(admission)
        self._overlap.awaited()

    def _count_lookup(self, cached_tokens: int) -> None:
        """The job that follows looks its prompt up."""

    def _closed(self, report: TransferReport) -> None:
        if report.status is not TransferStatus.COMPLETE:
            super()._closed(report)
            return
        assert self._ticket is not None
        self._note = self._overlap.closed(self._ticket.target, report, self._station.metrics.transfer)
        self.end(Outcome.HANDED_OVER)
