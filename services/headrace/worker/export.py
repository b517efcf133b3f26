"""ExportLeg: a job whose pages are here already. It hands them over and computes nothing."""

from headrace.core.errors import InvalidRequest, TransferFailed
from headrace.core.jobs import Job, Outcome
from headrace.core.ticket import Ticket
from headrace.engine.engine import Admission
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.worker.jobs import Leg, State, Station
from headrace.worker.outbox import Outbox
from headrace.worker.overlap import Overlap


class ExportLeg(Leg):
    """add (the engine holds the pages), send, all blocks ready at once -> sending -> closed -> handed over.

    The job that wrote the pages may end meanwhile: they stay until the transfer has closed. Without pages the taker
    hears at once that none will come: nobody else could tell it before its router does.
    """

    def __init__(self, job: Job, outbox: Outbox, station: Station) -> None:
        super().__init__(job, outbox, station)
        self._overlap = Overlap(self._loop.time)

    @property
    def _ticket(self) -> Ticket:
        if self.job.ticket is None:
            raise InvalidRequest("An export job needs the ticket of its transfer.")
        return self.job.ticket

    def _check(self) -> None:
        self._station.tickets.check(self.job, self._ticket)

    def _admitted(self, admission: Admission) -> None:
        if admission.resident_tokens < len(self.job.tokens):
            found = f"{admission.resident_tokens} of {len(self.job.tokens)}"
            self.end(Outcome.FAILED, TransferFailed(f"The pages of {found} tokens are here to be exported."))
            self._decline()
            return
        self._move(State.SENDING)
        ticket = self._station.tickets.bound(self._ticket, self.job)
        self._open(ticket.transfer)
        self._overlap.begins()
        self._overlap.awaited()
        self._station.carrier.send(ticket, self._remaining_s())
        blocks = self._station.tickets.ready(ticket, self.job, admission.resident_tokens, admission.blocks)
        self._station.carrier.advance(ticket.transfer, blocks)

    def _decline(self) -> None:
        """A transfer that was over before it began. Its report concerns nobody: it never touches a page."""
        carrier, ticket = self._station.carrier, self._station.tickets.bound(self._ticket, self.job)
        carrier.send(ticket, self._remaining_s())
        carrier.cancel(ticket.transfer)

    def _closed(self, report: TransferReport) -> None:
        if report.status is TransferStatus.COMPLETE:
            self._note = self._overlap.closed(self._ticket.source, report, self._station.metrics.transfer)
            self.end(Outcome.HANDED_OVER)
        else:
            self.end(Outcome.FAILED, report.error or TransferFailed("The decode worker gave the transfer up."))
