"""What the Link suites share: opening links, driving them to a condition, frames and buffers."""

import time
from collections.abc import Callable

import numpy as np

from headrace.chaos.aim import Aim
from headrace.chaos.faulty_link import FaultyLink
from headrace.transfer.data_address import ANY_PORT
from headrace.transfer.factory import make_link
from headrace.transfer.link import FrameId, Link, LinkFactory, Receipt, ReceiptState
from headrace.transfer.loopback import Switchboard

UCX_SHARED_MEMORY = "ucx+posix"
# A worker under a chaos harness that has nothing armed has this link.
UNDER_CHAOS = "tcp under chaos"


def factory_of(kind: str, host: str = "127.0.0.1", ports: range = ANY_PORT) -> LinkFactory:
    """kind: a link's name, UCX_SHARED_MEMORY or UNDER_CHAOS."""
    if kind == UNDER_CHAOS:
        below = make_link("tcp", host, ports=ports)
        return LinkFactory("tcp", lambda: FaultyLink(below.open(), Aim(lambda _: None)))
    name, _, memory = kind.partition("+")
    tls = f"tcp,{memory},self" if memory else "tcp,self"
    return make_link(name, host, tls=tls, ports=ports, switchboard=Switchboard())


class OpenLinks:
    """Links of one kind that can reach each other; each is closed once."""

    def __init__(self, kind: str, host: str = "127.0.0.1", ports: range = ANY_PORT) -> None:
        self.kind = kind
        self._factory = factory_of(kind, host, ports)
        self._open: list[Link] = []

    @property
    def notices_peers(self) -> bool:
        """False where a dead or silent peer is not told from a slow one: UCX over shared memory. See UcxLink."""
        return self.kind != UCX_SHARED_MEMORY

    def open(self) -> Link:
        self._open.append(self._factory.open())
        return self._open[-1]

    def close(self, link: Link) -> None:
        if link in self._open:
            self._open.remove(link)
            link.close()

    def close_all(self) -> None:
        for link in list(self._open):
            self.close(link)


def drive(
    wake: int, done: Callable[[], bool], *links: Link, timeout_s: float = 10.0, look_every_s: float = 0.001
) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < give_up_at, "waited in vain"
        for link in links:
            link.progress(look_every_s, wake)


def carry(wake: int, left: Link, right: Link, name: FrameId, fill: int = 5) -> None:
    """One frame from left to right, whole."""
    into = buffer(1000)
    received = right.post(name, into)
    sent = left.send(right.address, name, buffer(1000, fill))
    drive(wake, settled(sent, received), left, right)
    assert (sent.state, received.state) == (ReceiptState.DONE, ReceiptState.DONE)
    assert bytes(into) == bytes([fill]) * 1000


def settled(*receipts: Receipt) -> Callable[[], bool]:
    return lambda: not any(receipt.pending for receipt in receipts)


def buffer(size: int, fill: int = 0) -> memoryview:
    return np.full(size, fill, dtype=np.uint8).data


def frame(unit: int, transfer: int = 1) -> FrameId:
    return FrameId(b"\x11\x22\x33\x44\x55\x66\x77\x88" + transfer.to_bytes(8, "big"), unit)
