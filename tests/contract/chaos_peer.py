"""A peer of the Carrier suites whose link is under chaos; and a router's part: who fails ends the other's part too."""

import queue
import time
from collections.abc import Callable
from dataclasses import replace

from transfer_peer import BF16, Peer, Tickets

from headrace.chaos.aim import Aim
from headrace.chaos.faulty_link import FaultyLink
from headrace.chaos.messages import News
from headrace.core.jobs import JobKey
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.transfer.link import Link
from headrace.transfer.site import TransferOptions

KEY = JobKey("mine", 1)
BLOCKS = 12
SLABS = "headrace_kv_slabs"
REFUSED = "headrace_kv_units_refused_total"
PATIENT = TransferOptions(send_slabs=8, receive_slabs=8, drain_s=0.5, linger_s=0.5)
# So that a stall is soon over.
HASTY = replace(PATIENT, silent_s=1.5, short_s=4.0)
# A receiver that soon sees what only it can see.
WATCHFUL = replace(PATIENT, silent_s=1.5, beyond_s=0.5)


class FaultyPeer(Peer):
    """aim: of its link. told: the news of that."""

    def __init__(self, link: str, seed: int, options: TransferOptions) -> None:
        self.told: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.aim = Aim(self.told.put)
        super().__init__(link, BF16, 64, seed, options)

    def _open(self) -> Link:  # type: ignore[override]
        return FaultyLink(super()._open(), self.aim)

    def heard(self, kind: type[News], timeout_s: float = 10.0) -> News:
        """The next news of that kind; others are passed over."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            news = self.told.get(timeout=max(0.0, give_up_at - time.monotonic()))
            if isinstance(news, kind):
                return news


class Transfer:
    """One transfer from `p` to `d`. place: of the pages on both sides."""

    def __init__(self, p: Peer, d: Peer, ticket: Ticket, place: int = 0) -> None:
        self._p, self._d = p, d
        self.ticket = ticket
        self.blocks = tuple(range(place, place + BLOCKS))

    def begin(self, timeout_s: float = 20.0) -> None:
        self._d.receive(self.ticket, self.blocks, timeout_s)
        self._p.send(self.ticket, timeout_s)
        self._p.advance(self.ticket.transfer, self.blocks)

    def reports(self, timeout_s: float = 15.0) -> tuple[TransferReport, TransferReport]:
        """The sender's and the receiver's. As a router does: who fails ends the other's part too."""
        give_up_at = time.monotonic() + timeout_s
        found: dict[Peer, TransferReport] = {}
        while len(found) < 2:
            assert time.monotonic() < give_up_at, f"only {found} after {timeout_s:g} s"
            for peer, other in ((self._p, self._d), (self._d, self._p)):
                report = _report_now(peer)
                if report is not None:
                    assert report.transfer == self.ticket.transfer
                    found[peer] = report
                if report is not None and report.status is not TransferStatus.COMPLETE:
                    other.cancel(self.ticket.transfer)
        return found[self._p], found[self._d]

    def right(self) -> bool:
        return self._d.contents(self.blocks) == self._p.contents(self.blocks)

    def untouched(self, verified: int) -> bool:
        """Right where it was verified, and as it was beyond."""
        well, rest = self.blocks[:verified], self.blocks[verified:]
        return self._d.contents(well) == self._p.contents(well) and not any(self._d.contents(rest))


def _report_now(peer: Peer) -> TransferReport | None:
    try:
        return peer.reports.get(timeout=0.005)
    except queue.Empty:
        return None


def make(p: Peer, d: Peer, tickets: Tickets, link: str, *, address: str = "", place: int = 0) -> Transfer:
    """address: another than the receiver's own."""
    return Transfer(p, d, tickets.make(link, address or d.address(), BF16, BLOCKS), place)


def well_and_at_rest(p: Peer, d: Peer, again: Callable[[int], Transfer]) -> None:
    """Whatever happened before: the next transfers arrive, and every slab comes home."""
    for place in (24, 40):
        transfer = again(place)
        transfer.begin()
        sent, received = transfer.reports()
        assert (sent.status, received.status) == (TransferStatus.COMPLETE, TransferStatus.COMPLETE), received.error
        assert transfer.right()
    slabs = PATIENT.send_slabs + PATIENT.receive_slabs
    for peer in (p, d):
        peer.wait_sample(SLABS, slabs, state="free")
        assert peer.broken.empty()
        assert peer.health().rebuilds == 0
