"""IntakeLeg: a decode job. It takes in the pages of its prompt, and goes on when they and the first token are here."""

from headrace.core.errors import HeadraceError, InvalidRequest, TransferFailed
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Committed, Granted, Job, Outcome
from headrace.core.ticket import Ticket
from headrace.engine.engine import Admission, Engine, Sampled
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.worker.jobs import Leg, State, Station
from headrace.worker.outbox import Outbox
from headrace.worker.overlap import Overlap


class IntakeLeg(Leg):
    """add, receive, grant -> receiving -> all pages verified and the first token known, in either order -> running.

    Pages that are already verified when it ends early stay in the prefix cache, so a second attempt at the same
    prompt here asks only for the rest.
    """

    def __init__(self, job: Job, outbox: Outbox, station: Station) -> None:
        super().__init__(job, outbox, station)
        self._ticket: Ticket | None = None
        self._first_token: int | None = None
        self._overlap = Overlap(self._loop.time)

    def activate(self, first_token: int) -> None:
        if self.outcome is None and self._first_token is None:
            self._first_token = first_token
            self._overlap.awaited()
            self._start_if_ready()

    def transfer_closed(self, report: TransferReport) -> None:
        assert self._ticket is not None
        self._verified_tokens = self._station.tickets.verified_tokens(self._ticket, self.job, report.verified_blocks)
        super().transfer_closed(report)

    @property
    def _peer(self) -> WorkerRef:
        if self.job.peer is None:
            raise InvalidRequest("A decode job needs the prefill worker that will send its pages.")
        return self.job.peer

    def _check(self) -> None:
        """That the job names its peer."""
        _ = self._peer

    def _admitted(self, admission: Admission) -> None:
        self._move(State.RECEIVING)
        self._cached_tokens = admission.resident_tokens
        self._count_lookup(admission.resident_tokens)
        ticket = self._station.tickets.write(self.job, self._peer, admission.resident_tokens)
        blocks = self._station.tickets.places(ticket, admission.blocks)
        self._ticket = ticket
        self._open(ticket.transfer)
        self._overlap.begins()
        self._station.carrier.receive(ticket, blocks, self._remaining_s())
        self.outbox.reply(Granted(self.key, ticket, admission.resident_tokens))

    def _first_sampled(self, sampled: Sampled) -> None:
        """Its prompt was read by the prefill worker, which counts it."""

    def _closed(self, report: TransferReport) -> None:
        if report.status is TransferStatus.COMPLETE:
            assert self._ticket is not None
            self._note = self._overlap.closed(self._ticket.target, report, self._station.metrics.transfer)
            self._start_if_ready()
        else:
            self.end(Outcome.FAILED, report.error or TransferFailed("The prefill worker gave the transfer up."))

    def _start_if_ready(self) -> None:
        if self._note is not None and self._first_token is not None:
            self._move(State.RUNNING)
            self.outbox.reply(Committed(self.key, self._note))
            self._station.engine.call(self._activate, self._activated)

    def _activate(self, engine: Engine) -> None:
        assert self._first_token is not None
        engine.activate(self.key, self._first_token)

    def _activated(self, result: HeadraceError | None) -> None:
        if result is not None:
            self.end(Outcome.FAILED, result)
