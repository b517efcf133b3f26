"""A worker's transfers driven by hand: a real link between desks of one process, and a clock that only a test moves."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from transfer_peer import BF16, ArrayPages, Tickets

from headrace.core.ticket import Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import TransferReport
from headrace.transfer.factory import make_link
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState
from headrace.transfer.tenure import Tenure


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """One worker. Nothing moves but in `step`; a frame settles as soon as both ends have it."""

    def __init__(
        self, board: Switchboard, clock: Clock, options: TransferOptions, seed: int, blocks: int = 400
    ) -> None:
        self.pages = ArrayPages(BF16, blocks, seed)
        self.registry = CollectorRegistry()
        self.reports: list[TransferReport] = []
        self.tenure = Tenure(
            make_link("loopback", switchboard=board),
            self.pages,
            options,
            TransferMetrics(self.registry),
            report=self.reports.append,
            clock=clock,
        )
        self.transfers = self.tenure.transfers
        self._tickets = Tickets()

    def ticket(self, blocks: int, unit_blocks: int = 4) -> Ticket:
        """For a transfer to this desk."""
        return self._tickets.make("loopback", self.tenure.address, BF16, blocks, unit_blocks)

    def sends(self, ticket: Ticket, timeout_s: float = 1e6) -> None:
        """Begin to send a ticket, all of whose blocks are computed."""
        self.transfers.send(ticket, timeout_s)
        self.transfers.advance(ticket.transfer, tuple(range(ticket.block_count)))

    def receives(self, ticket: Ticket, timeout_s: float = 1e6) -> None:
        self.transfers.receive(ticket, tuple(range(ticket.block_count)), timeout_s)

    def step(self) -> None:
        assert self.tenure.step() is None

    def slabs(self, state: SlabState) -> int:
        return int(self.sample("headrace_kv_slabs", state=state.value))

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def close(self) -> None:
        self.tenure.link.close()


def begin(prefill: Desk, decode: Desk, blocks: int) -> Ticket:
    """A transfer whose blocks are all computed, as far as it gets."""
    ticket = decode.ticket(blocks)
    decode.receives(ticket)
    decode.step()
    prefill.sends(ticket)
    steps(prefill, decode)
    return ticket


def steps(*desks: Desk, rounds: int = 4) -> None:
    for _ in range(rounds):
        for desk in desks:
            desk.step()
