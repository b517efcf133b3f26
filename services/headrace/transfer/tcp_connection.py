"""The two ends of a TCP connection between links, and the small protocol that they speak.

The sender OFFERs a frame, the receiver PULLs it once a buffer is posted, DATA follows, the receiver says TAKEN. So
nothing is sent that nobody wants, and one frame never blocks another. A connection carries frames one way, from the
link that dialed. Owns what is on one socket; it does not know which sockets there are.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from enum import Enum

from headrace.transfer.link import FrameId, Receipt, ReceiptState

_HEAD = struct.Struct("<B16sHQ")
_READ_ROUNDS = 64


class _Verb(Enum):
    OFFER = 1
    PULL = 2
    DATA = 3
    TAKEN = 4
    REFUSED = 5
    RETRACTED = 6


class ProtocolBreach(Exception):
    """The peer broke the protocol or the connection broke; its text is the reason."""


@dataclass(slots=True)
class _Sending:
    """A frame offered to a peer. pulled: its bytes are on their way or gone."""

    buffer: memoryview
    receipt: Receipt
    pulled: bool = False


@dataclass(slots=True)
class Posted:
    """A receive that waits for its frame, or whose frame is arriving."""

    buffer: memoryview
    receipt: Receipt


class Connection(ABC):
    """One socket: an outbox of byte runs, and a reader of heads and payloads. Subclasses know what they mean."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.outbox: deque[memoryview] = deque()
        self._head = bytearray(_HEAD.size)
        self._target = memoryview(self._head)
        self._payload_of: FrameId | None = None

    def say(self, verb: _Verb, frame: FrameId, nbytes: int = 0, payload: memoryview | None = None) -> None:
        self.outbox.append(memoryview(_HEAD.pack(verb.value, frame.transfer, frame.unit, nbytes)))
        if payload is not None:
            self.outbox.append(payload)

    def flush(self) -> None:
        """Write what the socket takes. Raises OSError."""
        while self.outbox:
            try:
                sent = self.sock.send(self.outbox[0])
            except BlockingIOError:
                return
            if sent == len(self.outbox[0]):
                self.outbox.popleft()
            else:
                self.outbox[0] = self.outbox[0][sent:]

    def read(self) -> None:
        """Read what has arrived, at most a few pieces. Raises OSError or ProtocolBreach."""
        for _ in range(_READ_ROUNDS):
            try:
                got = self.sock.recv_into(self._target)
            except BlockingIOError:
                return
            if got == 0:
                raise ProtocolBreach("the peer closed the connection")
            self._target = self._target[got:]
            if not self._target:
                self._piece_complete()

    def _piece_complete(self) -> None:
        if self._payload_of is not None:
            frame, self._payload_of = self._payload_of, None
            self.payload_complete(frame)
        else:
            verb, transfer, unit, nbytes = _HEAD.unpack(self._head)
            frame = FrameId(transfer, unit)
            target = self.heard(verb, frame, nbytes)
            if target is not None and nbytes:
                self._target, self._payload_of = target, frame
                return
            if target is not None:
                self.payload_complete(frame)
        self._target = memoryview(self._head)

    @abstractmethod
    def heard(self, verb: int, frame: FrameId, nbytes: int) -> memoryview | None:
        """A head arrived. Returns where the payload that follows goes, if one does. Raises ProtocolBreach."""

    @abstractmethod
    def payload_complete(self, frame: FrameId) -> None:
        """All bytes of a payload that `heard` gave a place to are there."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection is gone: settle all that depended on it."""


class Dialed(Connection):
    """To a peer's listener: our sends."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.sends: dict[FrameId, _Sending] = {}

    def offer(self, frame: FrameId, buffer: memoryview, receipt: Receipt) -> None:
        self.sends[frame] = _Sending(buffer, receipt)
        self.say(_Verb.OFFER, frame, len(buffer))

    def holds(self, receipt: Receipt) -> bool:
        return any(sending.receipt is receipt for sending in self.sends.values())

    def retract(self, receipt: Receipt) -> bool:
        """Take back a frame whose bytes were not asked for yet. False if they were."""
        for frame, sending in list(self.sends.items()):
            if sending.receipt is receipt and not sending.pulled:
                del self.sends[frame]
                self.say(_Verb.RETRACTED, frame)
                receipt.settle(ReceiptState.FAILED, "withdrawn")
                return True
        return False

    def heard(self, verb: int, frame: FrameId, nbytes: int) -> None:
        sending = self.sends.get(frame)
        if sending is None:
            return  # withdrawn meanwhile
        if verb == _Verb.PULL.value and not sending.pulled:
            sending.pulled = True
            self.say(_Verb.DATA, frame, len(sending.buffer), sending.buffer)
        elif verb == _Verb.TAKEN.value and sending.pulled:
            self.sends.pop(frame).receipt.settle(ReceiptState.DONE)
        elif verb == _Verb.REFUSED.value:
            reason = "the frame is larger than the buffer posted for it"
            self.sends.pop(frame).receipt.settle(ReceiptState.FAILED, reason)
        else:
            raise ProtocolBreach("the peer sent what the protocol does not know")

    def payload_complete(self, frame: FrameId) -> None:
        raise AssertionError("no payload comes back to a sender")

    def lost(self, reason: str) -> None:
        for sending in self.sends.values():
            sending.receipt.settle(ReceiptState.FAILED, reason)
        self.sends.clear()


class Accepted(Connection):
    """From a peer that dialed us: its frames into our posted buffers."""

    def __init__(self, sock: socket.socket, posts: dict[FrameId, Posted]) -> None:
        super().__init__(sock)
        self._posts = posts
        self.offers: dict[FrameId, int] = {}
        self._arriving: dict[FrameId, Posted] = {}

    def match(self, frame: FrameId) -> None:
        """Pull `frame` if it is both offered here and posted."""
        if frame not in self.offers or frame not in self._posts:
            return
        nbytes, posted = self.offers.pop(frame), self._posts.pop(frame)
        if nbytes > len(posted.buffer):
            self.say(_Verb.REFUSED, frame)
            reason = "the frame is larger than the buffer posted for it"
            posted.receipt.settle(ReceiptState.FAILED, reason)
        else:
            self._arriving[frame] = Posted(posted.buffer[:nbytes], posted.receipt)
            self.say(_Verb.PULL, frame)

    def heard(self, verb: int, frame: FrameId, nbytes: int) -> memoryview | None:
        if verb == _Verb.OFFER.value:
            self.offers[frame] = nbytes
            self.match(frame)
        elif verb == _Verb.RETRACTED.value:
            self.offers.pop(frame, None)
            arriving = self._arriving.pop(frame, None)
            if arriving is not None:
                arriving.receipt.settle(ReceiptState.FAILED, "the sender withdrew it")
        elif verb == _Verb.DATA.value and frame in self._arriving and nbytes == len(self._arriving[frame].buffer):
            return self._arriving[frame].buffer
        else:
            raise ProtocolBreach("the peer sent what the protocol does not know")
        return None

    def payload_complete(self, frame: FrameId) -> None:
        self._arriving.pop(frame).receipt.settle(ReceiptState.DONE)
        self.say(_Verb.TAKEN, frame)

    def lost(self, reason: str) -> None:
        for arriving in self._arriving.values():
            arriving.receipt.settle(ReceiptState.FAILED, reason)
        self._arriving.clear()
