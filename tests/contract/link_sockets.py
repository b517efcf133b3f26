"""The sockets of this process as the kernel shows them: who listens where, and peers made to fall silent."""

import ctypes
import fcntl
import os
import socket
import termios
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python does not name


@dataclass(frozen=True, slots=True)
class Seen:
    """A TCP socket of this process. listens: else it is connected."""

    fd: int
    host: str
    port: int
    peer_port: int
    listens: bool


def tcp_sockets() -> frozenset[Seen]:
    """Listening and connected ones. What links of other tests left behind is among them."""
    wanted = {psutil.CONN_LISTEN: True, psutil.CONN_ESTABLISHED: False}
    return frozenset(
        Seen(one.fd, one.laddr.ip, one.laddr.port, one.raddr.port if one.raddr else 0, wanted[one.status])
        for one in psutil.Process().net_connections("tcp")
        if one.status in wanted
    )


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_void_p))


def at_rest(sockets: Iterable[Seen]) -> bool:
    """True once their peers' kernels acknowledged all that was sent."""
    waiting = (fcntl.ioctl(seen.fd, termios.TIOCOUTQ, bytes(4)) for seen in sockets)
    return not any(map(any, waiting))


def silence(sockets: Iterable[Seen]) -> None:
    """Let no packet in any more, unseen by both ends: to its peer a socket's host is now gone."""
    take_nothing = _Instruction(code=0x06)
    program = _Program(1, ctypes.addressof(take_nothing))
    for seen in sockets:
        with socket.socket(fileno=os.dup(seen.fd)) as same:
            same.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, bytes(program))


def free_ports(count: int) -> range:
    """Neighbouring ports of 127.0.0.1 at which nobody listens."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            ports = range(first.getsockname()[1], first.getsockname()[1] + count)
        if ports[-1] < 1 << 16 and all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
