"""What the Link suites share: opening links, driving them to a condition, frames and buffers."""

import time
from collections.abc import Callable

import numpy as np

from headrace.transfer.link import FrameId, Link, LinkFactory, Receipt


class OpenLinks:
    """Links of one kind that can reach each other; each is closed once."""

    def __init__(self, factory: LinkFactory) -> None:
        self._factory = factory
        self._open: list[Link] = []

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


def drive(wake: int, done: Callable[[], bool], *links: Link, timeout_s: float = 10.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < give_up_at, "waited in vain"
        for link in links:
            link.progress(0.001, wake)


def settled(*receipts: Receipt) -> Callable[[], bool]:
    return lambda: not any(receipt.pending for receipt in receipts)


def buffer(size: int, fill: int = 0) -> memoryview:
    return np.full(size, fill, dtype=np.uint8).data


def frame(unit: int, transfer: int = 1) -> FrameId:
    return FrameId(b"\x11\x22\x33\x44\x55\x66\x77\x88" + transfer.to_bytes(8, "big"), unit)
