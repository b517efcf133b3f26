"""Two workers' ends of transfers under one roof, for the Carrier suites."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transfer_peer import BF16, Peer, ProcessPeer, Tickets

from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions

SLABS = "headrace_kv_slabs"
BYTES = "headrace_kv_transfer_bytes_total"
REFUSED = "headrace_kv_units_refused_total"


class Pair:
    """A prefill peer (P, maybe a child process) and a decode peer (D, here)."""

    def __init__(
        self,
        wiring: str,
        layout: KvLayout,
        blocks: int,
        options: TransferOptions,
        *,
        swap: bool,
        sender: KvLayout | None = None,
    ) -> None:
        """layout: of both, or of D alone beside a `sender` for P."""
        self.link, _, place = wiring.partition("-")
        self.layout = layout
        self.options = options
        board = Switchboard() if self.link == "loopback" else None
        make = ProcessPeer if place else Peer
        here, p = (self.link, layout, blocks), (self.link, sender or layout, blocks)
        # swap: the decode worker is the one in the child process.
        self.p = Peer(*p, 1, options, switchboard=board) if swap or not place else make(*p, 1, options)
        self.d = make(*here, 0, options) if swap and place else Peer(*here, 0, options, switchboard=board)
        self.tickets = Tickets()

    def ticket(self, blocks: int, unit_blocks: int = 4) -> Ticket:
        return self.tickets.make(self.link, self.d.address(), self.layout, blocks, unit_blocks)

    def home(self) -> None:
        """Every slab is back on both sides."""
        for peer, count in ((self.p, self.options), (self.d, self.options)):
            peer.wait_sample(SLABS, count.send_slabs + count.receive_slabs, state="free")

    def child(self) -> ProcessPeer:
        return next(peer for peer in (self.p, self.d) if isinstance(peer, ProcessPeer))


@contextmanager
def pairs_of_peers() -> Iterator[Callable[..., Pair]]:
    """A maker of pairs; all of them end with the block, and nothing of them stays."""
    pairs: list[Pair] = []
    before = set(threading.enumerate())

    def make(
        wiring: str,
        layout: KvLayout = BF16,
        blocks: int = 200,
        options: TransferOptions | None = None,
        *,
        swap: bool = False,
        sender: KvLayout | None = None,
    ) -> Pair:
        pairs.append(Pair(wiring, layout, blocks, options or TransferOptions(), swap=swap, sender=sender))
        return pairs[-1]

    yield make
    for made in pairs:
        for peer in (made.p, made.d):
            errors = peer.end() if isinstance(peer, ProcessPeer) else peer.close()
            assert "UCX" not in (errors or ""), errors
    # A thread in the hands of gloo, whose peer is gone, ends at the limit of its wait.
    for thread in set(threading.enumerate()) - before:
        thread.join(30.0)
    assert set(threading.enumerate()) <= before
