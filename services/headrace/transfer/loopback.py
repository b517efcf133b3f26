"""LoopbackLink: both workers in one process, one copy from the sender's buffer into the receiver's.

Owns the matching of sends and posts among the links of one switchboard. It knows no sockets; frozen or killed
peers do not exist here, closed ones do.
"""

import os
import threading
from dataclasses import dataclass, field

from headrace.transfer.link import SENT_TWICE, FrameId, Receipt, ReceiptState
from headrace.transfer.readable import wait_readable


@dataclass(slots=True)
class _Entry:
    """One side of a frame that waits for the other. owner: the link to wake when it settles."""

    owner: "LoopbackLink"
    buffer: memoryview
    receipt: Receipt


@dataclass(slots=True)
class _Port:
    """What waits at one link's address: its own posts, and sends that others made to it."""

    posts: dict[FrameId, _Entry] = field(default_factory=dict)
    offers: dict[FrameId, _Entry] = field(default_factory=dict)


class Switchboard:
    """The memory that the links of one process share. Safe across their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ports: dict[str, _Port] = {}
        self._opened = 0

    def open(self) -> str:
        with self._lock:
            self._opened += 1
            address = f"loopback:{self._opened}"
            self._ports[address] = _Port()
            return address

    def post(self, address: str, frame: FrameId, entry: _Entry) -> None:
        with self._lock:
            port = self._ports[address]
            port.posts[frame] = entry
            _match(port, frame)

    def offer(self, address: str, frame: FrameId, entry: _Entry) -> None:
        with self._lock:
            port = self._ports.get(address)
            if port is None:
                _settle(entry, ReceiptState.FAILED, f"no link at {address}")
                return
            if not entry.buffer:
                _settle(entry, ReceiptState.DONE, "")
                return
            if frame in port.offers:
                _settle(entry, ReceiptState.FAILED, SENT_TWICE)
                return
            port.offers[frame] = entry
            _match(port, frame)

    def withdraw(self, receipt: Receipt) -> None:
        with self._lock:
            for port in self._ports.values():
                _drop(port.posts, receipt)
                _drop(port.offers, receipt)

    def close(self, address: str, link: "LoopbackLink") -> None:
        with self._lock:
            gone = self._ports.pop(address)
            for entry in (*gone.posts.values(), *gone.offers.values()):
                _settle(entry, ReceiptState.FAILED, "the link was closed")
            for port in self._ports.values():
                for frame in [frame for frame, entry in port.offers.items() if entry.owner is link]:
                    _settle(port.offers.pop(frame), ReceiptState.FAILED, "the link was closed")


def _match(port: _Port, frame: FrameId) -> None:
    if frame not in port.posts or frame not in port.offers:
        return
    post, offer = port.posts.pop(frame), port.offers.pop(frame)
    if len(offer.buffer) > len(post.buffer):
        state, reason = ReceiptState.FAILED, "the frame is larger than the buffer posted for it"
    else:
        post.buffer[: len(offer.buffer)] = offer.buffer
        state, reason = ReceiptState.DONE, ""
    _settle(post, state, reason)
    _settle(offer, state, reason)


def _settle(entry: _Entry, state: ReceiptState, reason: str) -> None:
    entry.receipt.settle(state, reason)
    entry.owner.wake()


def _drop(entries: dict[FrameId, _Entry], receipt: Receipt) -> None:
    for frame, entry in list(entries.items()):
        if entry.receipt is receipt:
            _settle(entries.pop(frame), ReceiptState.FAILED, "withdrawn")


class LoopbackLink:
    """A link among those of one switchboard. A receipt settles as soon as both sides are there."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._address = switchboard.open()

    @property
    def address(self) -> str:
        return self._address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._switchboard.withdraw)
        self._switchboard.post(self._address, frame, _Entry(self, buffer, receipt))
        return receipt

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._switchboard.withdraw)
        self._switchboard.offer(address, frame, _Entry(self, buffer, receipt))
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        if self._event in wait_readable((self._event, wake_fd), timeout_s):
            os.eventfd_read(self._event)

    def close(self) -> None:
        self._switchboard.close(self._address, self)
        os.close(self._event)

    def wake(self) -> None:
        """Called by the switchboard, on any thread, while this link is open."""
        os.eventfd_write(self._event, 1)
