"""How long a TCP connection bears a silent peer, and how a listener hands that on to the connections it accepts.

The kernel gives a connection up when its peer's kernel is silent: after 10 s with bytes under way, some 11 s without.
A frozen peer's kernel still answers; bytes that find no room there for 10 s end the connection too.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_SILENCE_MS = 10_000
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 5, 2, 3
# Calls that nobody answers: 1, 2 and 4 s.
CALL_AGAIN = 2


def limit_patience(sock: socket.socket) -> None:
    """Of a connection, or of those that a listener will accept."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


@contextmanager
def patience_of_new_listeners() -> Iterator[None]:
    """Limit it for the listeners that a library opens inside, which tells nobody about them.

    Should another thread open one meanwhile, its connections end after the same silence."""
    before = _listeners()
    yield
    for fd in _listeners() - before:
        with socket.socket(fileno=os.dup(fd)) as same:
            limit_patience(same)


def _listeners() -> set[int]:
    """Descriptors of this process that listen over TCP."""
    sockets = psutil.Process().net_connections("tcp")
    return {one.fd for one in sockets if one.status == psutil.CONN_LISTEN}
