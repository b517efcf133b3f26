"""HandoverLeg: a prefill job. Its pages leave as they are computed; its first token does not wait for them."""

from headrace.core.errors import InvalidRequest, TransferFailed
from headrace.core.jobs import Job, Outcome
from headrace.core.ticket import Ticket
from headrace.engine.engine import Admission, Progress, Sampled
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.worker.jobs import Leg, State, Station
from headrace.worker.outbox import Outbox
from headrace.worker.overlap import Overlap


class HandoverLeg(Leg):
    """add, send -> running (advance, advance ...) -> first token -> sending -> closed -> handed over.

    A first token that ends the request ends the job and gives the transfer up. The pages stay until the transfer
    has closed, however the job ended.
    """

    def __init__(self, job: Job, outbox: Outbox, station: Station) -> None:
        super().__init__(job, outbox, station)
        self._sent = False
        self._overlap = Overlap(self._loop.time)

    def sampled(self, sampled: Sampled) -> None:
        super().sampled(sampled)
        self._overlap.awaited()
        self._move(State.SENDING)
        self._hand_over_if_sent()

    def progressed(self, progress: Progress) -> None:
        if self._transfer is not None:
            blocks = self._station.tickets.ready(self._ticket, self.job, progress.computed_tokens, progress.blocks)
            if blocks:
                self._overlap.begins()
            self._station.carrier.advance(self._transfer, blocks)

    @property
    def _ticket(self) -> Ticket:
        if self.job.ticket is None:
            raise InvalidRequest("A prefill job needs the ticket of its transfer.")
        return self.job.ticket

    def _check(self) -> None:
        self._station.tickets.check(self.job, self._ticket)

    def _admitted(self, admission: Admission) -> None:
        self._move(State.RUNNING)
        self._open(self._ticket.transfer)
        self._station.carrier.send(self._station.tickets.bound(self._ticket, self.job), self._remaining_s())

    def _closed(self, report: TransferReport) -> None:
        if report.status is TransferStatus.COMPLETE:
            self._sent = True
            self._note = self._overlap.closed(self._ticket.source, report, self._station.metrics.transfer)
            self._hand_over_if_sent()
        else:
            self.end(Outcome.FAILED, report.error or TransferFailed("The decode worker gave the transfer up."))

    def _hand_over_if_sent(self) -> None:
        if self._sent and self.state is State.SENDING:
            self.end(Outcome.HANDED_OVER)
