"""The two ends of a TCP connection between links, and the small protocol that they speak.

The sender OFFERs a frame, the receiver PULLs it once a buffer is posted, DATA follows, the receiver says TAKEN. So
nothing is sent that nobody wants, and one frame never blocks another. A connection carries frames one way, from the
link that dialed, and begins with that link's HELLO to the one it means. A frame of no bytes needs no buffer: the
receiver's link says TAKEN itself. Owns what is on one socket; it does not know which sockets there are.
"""

import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from headrace.transfer.link import SENT_TWICE, FrameId, Receipt, ReceiptState
from headrace.transfer.tcp_head import HEAD_BYTES, Head, ProtocolBreach, Verb, pack_head, unpack_head

_READ_ROUNDS = 64
_NAME_BYTES = 16


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
        # Whether its owner waits until it takes bytes again.
        self.blocked = False
        # Whether a receipt settled since its owner looked.
        self.settled = False
        self._head = bytearray(HEAD_BYTES)
        self._target = memoryview(self._head)
        self._payload_of: FrameId | None = None

    def say(self, verb: Verb, frame: FrameId, nbytes: int = 0, payload: memoryview | None = None) -> None:
        self.outbox.append(memoryview(pack_head(Head(verb, frame, nbytes))))
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
            head = unpack_head(bytes(self._head))
            target = self.heard(head)
            if target is not None:
                self._target, self._payload_of = target, head.frame
                return
        self._target = memoryview(self._head)

    def _settle(self, receipt: Receipt, state: ReceiptState, reason: str = "") -> None:
        receipt.settle(state, reason)
        self.settled = True

    @abstractmethod
    def heard(self, head: Head) -> memoryview | None:
        """A head arrived. Returns where the payload that follows goes, if one does. Raises ProtocolBreach."""

    @abstractmethod
    def payload_complete(self, frame: FrameId) -> None:
        """All bytes of a payload that `heard` gave a place to are there."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection is gone: settle all that depended on it."""


class Dialed(Connection):
    """To a peer's listener: our sends. name: of this connection, on both sides. nonce: of the link that is called."""

    def __init__(self, sock: socket.socket, nonce: bytes) -> None:
        super().__init__(sock)
        self.name = os.urandom(_NAME_BYTES)
        self.sends: dict[FrameId, _Sending] = {}
        self.say(Verb.HELLO, FrameId(self.name, 0), int.from_bytes(nonce, "big"))

    def offer(self, frame: FrameId, buffer: memoryview, receipt: Receipt) -> None:
        """Refused at once while the same frame is under way."""
        if frame in self.sends:
            receipt.settle(ReceiptState.FAILED, SENT_TWICE)
            return
        self.sends[frame] = _Sending(buffer, receipt, pulled=not buffer)
        self.say(Verb.OFFER, frame, len(buffer))

    def holds(self, receipt: Receipt) -> bool:
        return any(sending.receipt is receipt for sending in self.sends.values())

    def retract(self, receipt: Receipt) -> bool:
        """Take back a frame whose bytes were not asked for yet. False if they were."""
        for frame, sending in list(self.sends.items()):
            if sending.receipt is receipt and not (sending.pulled and sending.buffer):
                del self.sends[frame]
                self.say(Verb.RETRACTED, frame)
                self._settle(receipt, ReceiptState.FAILED, "withdrawn")
                return True
        return False

    def heard(self, head: Head) -> None:
        sending = self.sends.get(head.frame)
        if sending is None:
            return  # withdrawn meanwhile
        if head.verb is Verb.PULL and not sending.pulled:
            sending.pulled = True
            self.say(Verb.DATA, head.frame, len(sending.buffer), sending.buffer)
        elif head.verb is Verb.TAKEN and sending.pulled:
            self._settle(self.sends.pop(head.frame).receipt, ReceiptState.DONE)
        elif head.verb is Verb.REFUSED:
            reason = "the frame is larger than the buffer posted for it"
            self._settle(self.sends.pop(head.frame).receipt, ReceiptState.FAILED, reason)
        else:
            raise ProtocolBreach("the peer said what does not follow from what was said before")

    def payload_complete(self, frame: FrameId) -> None:
        raise AssertionError("no payload comes back to a sender")

    def lost(self, reason: str) -> None:
        for sending in self.sends.values():
            self._settle(sending.receipt, ReceiptState.FAILED, reason)
        self.sends.clear()


class Accepted(Connection):
    """From a peer that dialed us: its frames into our posted buffers. nonce: ours. name: the connection's, once the
    peer said it."""

    def __init__(self, sock: socket.socket, posts: dict[FrameId, Posted], nonce: bytes) -> None:
        super().__init__(sock)
        self.name = b""
        self._posts = posts
        self._nonce = int.from_bytes(nonce, "big")
        self.offers: dict[FrameId, int] = {}
        self._arriving: dict[FrameId, Posted] = {}

    def match(self, frame: FrameId) -> None:
        """Pull `frame` if it is both offered here and posted."""
        if frame not in self.offers or frame not in self._posts:
            return
        nbytes, posted = self.offers.pop(frame), self._posts.pop(frame)
        if nbytes > len(posted.buffer):
            self.say(Verb.REFUSED, frame)
            reason = "the frame is larger than the buffer posted for it"
            self._settle(posted.receipt, ReceiptState.FAILED, reason)
        else:
            self._arriving[frame] = Posted(posted.buffer[:nbytes], posted.receipt)
            self.say(Verb.PULL, frame)

    def heard(self, head: Head) -> memoryview | None:
        frame = head.frame
        if not self.name:
            self._greeted(head)
        elif head.verb is Verb.OFFER:
            self._offered(frame, head.nbytes)
        elif head.verb is Verb.RETRACTED:
            self.offers.pop(frame, None)
            arriving = self._arriving.pop(frame, None)
            if arriving is not None:
                self._settle(arriving.receipt, ReceiptState.FAILED, "the sender withdrew it")
        elif head.verb is Verb.DATA and frame in self._arriving and head.nbytes == len(self._arriving[frame].buffer):
            return self._arriving[frame].buffer
        else:
            raise ProtocolBreach("the peer said what does not follow from what was said before")
        return None

    def _greeted(self, head: Head) -> None:
        if head.verb is not Verb.HELLO or head.nbytes != self._nonce:
            raise ProtocolBreach("the peer meant another link, which was here before")
        self.name = head.frame.transfer

    def _offered(self, frame: FrameId, nbytes: int) -> None:
        if nbytes:
            self.offers[frame] = nbytes
            self.match(frame)
        else:
            self.say(Verb.TAKEN, frame)

    def payload_complete(self, frame: FrameId) -> None:
        self._settle(self._arriving.pop(frame).receipt, ReceiptState.DONE)
        self.say(Verb.TAKEN, frame)

    def lost(self, reason: str) -> None:
        for arriving in self._arriving.values():
            self._settle(arriving.receipt, ReceiptState.FAILED, reason)
        self._arriving.clear()
