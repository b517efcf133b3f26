"""TcpLink: frames over plain non-blocking sockets; the reference for faults, and for hosts without UCX.

Owns the listener, the connections and the waiting. What is said on a connection is `tcp_connection`'s; any breach of
that protocol ends the connection.
"""

import errno
import os
import selectors
import socket

from headrace.core.errors import StartupError
from headrace.transfer.link import FrameId, Receipt, ReceiptState
from headrace.transfer.tcp_connection import Accepted, Connection, Dialed, Posted, ProtocolBreach


class TcpLink:
    """A listener on a free port of `host` (a numeric address or a name), and one connection per peer and direction.

    Only this thread moves bytes, so closing a connection is a fence and every receipt settles at once.
    """

    def __init__(self, host: str) -> None:
        self._posts: dict[FrameId, Posted] = {}
        self._dialed: dict[str, Dialed] = {}
        self._accepted: set[Accepted] = set()
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
            elif isinstance(key.data, Connection):
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

    def _dial(self, address: str) -> Dialed:
        known = self._dialed.get(address)
        if known is not None:
            return known
        host, _, port = address.rpartition(":")
        family, kind, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        connection = Dialed(_prepared(socket.socket(family, kind)))
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
        connection = Accepted(_prepared(sock), self._posts)
        self._accepted.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.read()
        except (OSError, ProtocolBreach) as error:
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
    return sock
