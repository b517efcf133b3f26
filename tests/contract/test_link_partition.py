"""Two hosts between which the network is gone for a while: idle connections end by themselves and are made again."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from carrier_pair import BYTES
from fixtures.namespaces import Cable, Host, two_hosts, why_not
from transfer_peer import BF16, ProcessPeer, Tickets, until

from headrace.transfer.carrier import TransferStatus
from headrace.transfer.site import TransferOptions

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "possible")
LINKS = ("tcp", "ucx")
BLOCKS = 8
NOTICED_WITHIN_S = 30.0
AFTERWARDS_WITHIN_S = 1.0
# A transfer under way is given up soon, so that what follows is about connections.
OPTIONS = TransferOptions(silent_s=0.5, drain_s=0.5)


class Across:
    """A prefill peer on one host, a decode peer on the other."""

    def __init__(self, link: str, cable: Cable) -> None:
        self.link = link
        self.p = peer(link, cable.left, 1)
        self.d = peer(link, cable.right, 0)
        self.address = self.d.address()
        self._tickets = Tickets()

    def begin(self) -> bytes:
        ticket = self._tickets.make(self.link, self.address, BF16, BLOCKS)
        self.d.receive(ticket, tuple(range(BLOCKS)), 20.0)
        self.p.send(ticket, 20.0)
        self.p.advance(ticket.transfer, tuple(range(BLOCKS)))
        return ticket.transfer

    def carry(self) -> float:
        """Seconds that a transfer takes."""
        began = time.monotonic()
        self.begin()
        reports = [one.report() for one in (self.p, self.d)]
        assert [report.status for report in reports] == [TransferStatus.COMPLETE] * 2, reports
        return time.monotonic() - began


def peer(link: str, host: Host, seed: int) -> ProcessPeer:
    return ProcessPeer(link, BF16, 16, seed, OPTIONS, host=host.address, command=host.command)


@pytest.fixture
def cable() -> Iterator[Cable]:
    with two_hosts() as made:
        yield made


@pytest.fixture
def pairs(cable: Cable) -> Iterator[list[Across]]:
    """One of each link, under the same cut at the same time."""
    with ExitStack() as closing:
        made = []
        for link in LINKS:
            made.append(Across(link, cable))
            for one in (made[-1].p, made[-1].d):
                closing.callback(one.end)
        yield made


def test_connections_at_rest_end_by_themselves_and_are_made_again(cable: Cable, pairs: list[Across]) -> None:
    for pair in pairs:
        pair.carry()
    assert cable.connections()
    # 1. Nobody sends anything, and both ends notice nevertheless: nothing half open stays.
    cable.cut()
    until(lambda: not cable.connections(), "no connection is left", NOTICED_WITHIN_S)
    cable.mend()
    # 2. The next transfer finds its way at once.
    taken = {pair.link: pair.carry() for pair in pairs}
    assert max(taken.values()) < AFTERWARDS_WITHIN_S, taken


def test_a_cut_inside_transfers_costs_these_and_no_later_ones(cable: Cable, pairs: list[Across]) -> None:
    for pair in pairs:
        pair.carry()
    cable.cut()
    for pair in pairs:
        transfer = pair.begin()
        assert pair.p.report().status is TransferStatus.FAILED
        assert "did not answer" in pair.p.meet(pair.address) or pair.link == "ucx"
        pair.d.cancel(transfer)
        assert pair.d.report().status is not TransferStatus.COMPLETE
    until(lambda: not cable.connections(), "no connection is left", NOTICED_WITHIN_S)
    cable.mend()
    before = [pair.d.sample(BYTES, direction="received") for pair in pairs]
    taken = {pair.link: pair.carry() for pair in pairs}
    assert max(taken.values()) < AFTERWARDS_WITHIN_S, taken
    # Nothing of the transfer that failed came later.
    for pair, bytes_before in zip(pairs, before, strict=True):
        assert pair.d.sample(BYTES, direction="received") - bytes_before == BLOCKS * BF16.block_bytes
