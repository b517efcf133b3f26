"""TcpLink: frames over plain non-blocking sockets; the reference for faults, and for hosts without UCX.

Owns the listener, the connections and the waiting. What is said on a connection is `tcp_connection`'s; any breach of
that protocol ends the connection.
"""

import errno
import os
import selectors
import socket
import time

from headrace.core.errors import StartupError
from headrace.transfer.data_address import ANY_PORT, DataAddress, listen
from headrace.transfer.link import FrameId, Receipt, ReceiptState
from headrace.transfer.tcp_connection import Accepted, Connection, Dialed, Posted
from headrace.transfer.tcp_head import ProtocolBreach
from headrace.transfer.tcp_patience import CALL_AGAIN, limit_patience

# With no descriptor left a caller cannot be let in, and the listener would wake us without end.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_DEAF_S = 0.5


class TcpLink:
    """A listener on `host`, a numeric address, and one connection per peer and direction. ports: where it may listen.

    Only this thread moves bytes, so closing a connection is a fence and every receipt settles at once.
    """

    def __init__(self, host: str, ports: range = ANY_PORT) -> None:
        self._posts: dict[FrameId, Posted] = {}
        self._dialed: dict[str, Dialed] = {}
        self._accepted: set[Accepted] = set()
        self._wake_fd = -1
        self._deaf_until: float | None = None
        self._settled_early = False
        try:
            self._listener = listen(host, ports)
        except OSError as error:
            raise StartupError(f"The tcp link cannot listen on {host} ({error}).") from error
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._own = DataAddress.at(host, self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return str(self._own)

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        self._posts[frame] = Posted(buffer, receipt)
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
        self._settled_early |= not receipt.pending
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._watch(wake_fd)
        self._flush_all()
        # What settled outside of the wait below must be looked at before waiting.
        until = time.monotonic() + (0.0 if self._settled_early else timeout_s)
        # Here again, and not by way of the caller, while frames come and go in parts: as long as the caller may wait. A
        # peer that is never silent must not keep others' deadlines from being looked at.
        while not self._turn(max(0.0, until - time.monotonic())) and time.monotonic() < until:
            pass
        self._settled_early = False

    def _turn(self, timeout_s: float) -> bool:
        """Wait once, and move what can be moved. False if nobody need look yet: only bytes moved."""
        ready = self._selector.select(min(timeout_s, self._deaf_s()))
        called = not ready
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection):
                self._serve(key.data)
                called |= key.data.settled
                key.data.settled = False
            else:
                called = True
        self._flush_all()
        return called or self._settled_early

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

    def _dial(self, address: str) -> Dialed:
        """The connection to a peer. Raises OSError or ValueError."""
        known = self._dialed.get(address)
        if known is None:
            called = DataAddress.parse(address)
            known = self._dialed[address] = self._connection_to(self._call(called), called)
            self._selector.register(known.sock, selectors.EVENT_READ, known)
        return known

    def _call(self, called: DataAddress) -> socket.socket:
        sock = _prepared(socket.socket(socket.AF_INET6 if ":" in called.host else socket.AF_INET))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, CALL_AGAIN)
        progress = sock.connect_ex((called.host, called.port))
        if progress not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(progress, os.strerror(progress))
        return sock

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._selector.unregister(self._listener)
                self._deaf_until = time.monotonic() + _DEAF_S
            return  # or the peer left between knocking and entering
        connection = self._connection_from(_prepared(sock))
        self._accepted.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _deaf_s(self) -> float:
        """How long no caller is heard yet: the listener is watched again when that time is over."""
        left_s = float("inf") if self._deaf_until is None else self._deaf_until - time.monotonic()
        if left_s <= 0:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._deaf_until, left_s = None, float("inf")
        return left_s

    def _connection_to(self, sock: socket.socket, called: DataAddress) -> Dialed:
        return Dialed(sock, called.nonce)

    def _connection_from(self, sock: socket.socket) -> Accepted:
        return Accepted(sock, self._posts, self._own.nonce)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.read()
        except (OSError, ProtocolBreach) as error:
            self._drop(connection, _why(error))

    def _flush_all(self) -> None:
        """Write what can be written, and be woken for the rest."""
        for connection in [*self._dialed.values(), *self._accepted]:
            if not connection.outbox and not connection.blocked:
                continue
            try:
                connection.flush()
            except OSError as error:
                self._drop(connection, _why(error))
                continue
            if connection.blocked != bool(connection.outbox):
                connection.blocked = bool(connection.outbox)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.blocked else 0)
                self._selector.modify(connection.sock, wanted, connection)

    def _drop(self, connection: Connection, reason: str) -> None:
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
    limit_patience(sock)
    return sock


def _why(error: Exception) -> str:
    """A peer that is gone is heard as the end of what it sends, as a reset or as a pipe that broke, as it happens."""
    gone = isinstance(error, BrokenPipeError | ConnectionResetError)
    return "the peer closed the connection" if gone else str(error)
