"""TcpLink: frames over plain non-blocking sockets; the reference for faults, and for hosts without UCX.

Owns sockets and the small protocol on them: the sender OFFERs a frame, the receiver PULLs it once a buffer is posted,
DATA follows, the receiver says TAKEN. So nothing is sent that nobody wants, and one frame never blocks another.
A connection carries frames one way, from the link that dialed; any breach of the protocol ends it.
"""

import errno
import os
import selectors
import socket
import struct
from collections import deque
from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import StartupError
from headrace.transfer.link import FrameId, Receipt, ReceiptState

_HEAD = struct.Struct("<B16sHQ")
_CHUNK_ROUNDS = 64


class _Verb(Enum):
    OFFER = 1
    PULL = 2
    DATA = 3
    TAKEN = 4
    REFUSED = 5
    RETRACTED = 6


class _Breach(Exception):
    """The peer broke the protocol or the connection broke; its text is the reason."""


@dataclass(slots=True)
class _Sending:
    """A frame offered to a peer. pulled: its bytes are on their way or gone."""

    buffer: memoryview
    receipt: Receipt
    pulled: bool = False


@dataclass(slots=True)
class _Posted:
    buffer: memoryview
    receipt: Receipt


class _Connection:
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
        """Read what has arrived, at most a few pieces. Raises OSError or _Breach."""
        for _ in range(_CHUNK_ROUNDS):
            try:
                got = self.sock.recv_into(self._target)
            except BlockingIOError:
                return
            if got == 0:
                raise _Breach("the peer closed the connection")
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

    def heard(self, verb: int, frame: FrameId, nbytes: int) -> memoryview | None:
        """A head arrived. Returns where the payload that follows goes, if one does. Raises _Breach."""
        raise NotImplementedError

    def payload_complete(self, frame: FrameId) -> None:
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The connection is gone: settle all that depended on it."""
        raise NotImplementedError


class _Dialed(_Connection):
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
            raise _Breach("the peer sent what the protocol does not know")

    def lost(self, reason: str) -> None:
        for sending in self.sends.values():
            sending.receipt.settle(ReceiptState.FAILED, reason)
        self.sends.clear()


class _Accepted(_Connection):
    """From a peer that dialed us: its frames into our posted buffers."""

    def __init__(self, sock: socket.socket, posts: dict[FrameId, _Posted]) -> None:
        super().__init__(sock)
        self._posts = posts
        self.offers: dict[FrameId, int] = {}
        self._arriving: dict[FrameId, _Posted] = {}

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
            self._arriving[frame] = _Posted(posted.buffer[:nbytes], posted.receipt)
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
            raise _Breach("the peer sent what the protocol does not know")
        return None

    def payload_complete(self, frame: FrameId) -> None:
        self._arriving.pop(frame).receipt.settle(ReceiptState.DONE)
        self.say(_Verb.TAKEN, frame)

    def lost(self, reason: str) -> None:
        for arriving in self._arriving.values():
            arriving.receipt.settle(ReceiptState.FAILED, reason)
        self._arriving.clear()


class TcpLink:
    """A listener on a free port of `host` (a numeric address or a name), and one connection per peer and direction.

    Only this thread moves bytes, so closing a connection is a fence and every receipt settles at once.
    """

    def __init__(self, host: str) -> None:
        self._posts: dict[FrameId, _Posted] = {}
        self._dialed: dict[str, _Dialed] = {}
        self._accepted: set[_Accepted] = set()
        self._wake_fd = -1
        self._settled_early = False
        try:
            self._listener = socket.create_server((host, 0), backlog=128)
        except OSError as error:
            raise StartupError(f"The tcp link cannot listen on {host} ({error}).") from error
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._address = f"{host}:{self._listener.getsockname()[1]}"

    @property
    def address(self) -> str:
        return self._address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        self._posts[frame] = _Posted(buffer, receipt)
        for connection in self._accepted:
            connection.match(frame)
        self._settled_early |= not receipt.pending
        return receipt

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        try:
            self._dial(address).offer(frame, buffer, receipt)
        except (OSError, ValueError) as error:
            receipt.settle(ReceiptState.FAILED, f"{address} cannot be reached ({error})")
            self._settled_early = True
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._watch(wake_fd)
        self._flush_all()
        # What settled outside of the wait below must be looked at before waiting.
        timeout_s, self._settled_early = (0.0 if self._settled_early else timeout_s), False
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Connection):
                self._serve(key.data, events)
        self._flush_all()
        self._settled_early = False

    def close(self) -> None:
        for connection in [*self._dialed.values(), *self._accepted]:
            self._drop(connection, "the link was closed")
        for posted in self._posts.values():
            posted.receipt.settle(ReceiptState.FAILED, "the link was closed")
        self._posts.clear()
        self._selector.close()
        self._listener.close()

    def _watch(self, wake_fd: int) -> None:
        if wake_fd != self._wake_fd:
            if self._wake_fd >= 0:
                self._selector.unregister(self._wake_fd)
            self._selector.register(wake_fd, selectors.EVENT_READ)
            self._wake_fd = wake_fd

    def _dial(self, address: str) -> _Dialed:
        known = self._dialed.get(address)
        if known is not None:
            return known
        host, _, port = address.rpartition(":")
        family, kind, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        connection = _Dialed(_prepared(socket.socket(family, kind)))
        progress = connection.sock.connect_ex(target)
        if progress not in (0, errno.EINPROGRESS):
            connection.sock.close()
            raise OSError(progress, os.strerror(progress))
        self._dialed[address] = connection
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        return connection

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the peer left between knocking and entering
        connection = _Accepted(_prepared(sock), self._posts)
        self._accepted.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.read()
        except (OSError, _Breach) as error:
            self._drop(connection, str(error))

    def _flush_all(self) -> None:
        """Write what can be written, and be woken for the rest."""
        for connection in [*self._dialed.values(), *self._accepted]:
            try:
                connection.flush()
            except OSError as error:
                self._drop(connection, str(error))
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
            if self._selector.get_key(connection.sock).events != wanted:
                self._selector.modify(connection.sock, wanted, connection)

    def _drop(self, connection: _Connection, reason: str) -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._dialed = {address: known for address, known in self._dialed.items() if known is not connection}
        self._accepted = {known for known in self._accepted if known is not connection}
        connection.lost(reason)
        self._settled_early = True

    def _withdraw(self, receipt: Receipt) -> None:
        self._settled_early = True
        for frame, posted in list(self._posts.items()):
            if posted.receipt is receipt:
                del self._posts[frame]
                receipt.settle(ReceiptState.FAILED, "withdrawn")
                return
        for connection in list(self._dialed.values()):
            if connection.holds(receipt) and not connection.retract(receipt):
                self._drop(connection, "withdrawn while it was being sent")


def _prepared(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
