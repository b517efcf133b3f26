"""Where a worker's link is reached: numeric addresses, the interface that has one, and ports to listen on.

Owns the text that tickets carry for links between processes. Nothing here blocks but `own_address`.
"""

import contextlib
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Self

import psutil

from headrace.core.address import joined, parted
from headrace.core.errors import StartupError

NONCE_BYTES = 8
ANY_PORT = range(0)
_REMEDY = "Give --host or --advertise-host an address of this host."


@dataclass(frozen=True, slots=True)
class DataAddress:
    """One life of a link, and how to call it: `host:port/nonce`, for some links with `/meeting` after that.

    host: numeric, so that calling needs no name service. nonce: NONCE_BYTES random ones; a link that comes to the same
    port later has others, so nothing known about the former one is taken for the new. meeting: a second port.
    """

    host: str
    port: int
    nonce: bytes
    meeting: int = 0

    @classmethod
    def at(cls, host: str, port: int, meeting: int = 0) -> Self:
        """The address of a link that begins to live."""
        return cls(host, port, os.urandom(NONCE_BYTES), meeting)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        place, _, life = text.partition("/")
        host, port = parted(place)
        nonce, _, meeting = life.partition("/")
        address = cls(str(ipaddress.ip_address(host)), port, bytes.fromhex(nonce), int(meeting or 0))
        if str(address) != text or len(address.nonce) != NONCE_BYTES or not 0 < address.port < 1 << 16:
            raise ValueError(f"{text!r} is no data address")
        return address

    def __str__(self) -> str:
        place = f"{joined(self.host, self.port)}/{self.nonce.hex()}"
        return f"{place}/{self.meeting}" if self.meeting else place


def port_range(text: str) -> range:
    """`first-last`, both included, or "" for any port. Raises StartupError."""
    if not text:
        return ANY_PORT
    first, _, last = text.partition("-")
    ports = range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else range(0)
    if not ports or ports[0] < 1 or ports[-1] >= 1 << 16:
        raise StartupError(
            f"{text!r} is no range of ports.", remedy="Write --data-port-range as first-last, such as 9200-9299."
        )
    return ports


def own_address(host: str) -> str:
    """The first IP address that `host` is or means and that this host has: a name may be that of several hosts.

    May ask a name service. Raises StartupError.
    """
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise StartupError(f"A link cannot listen on {host} ({error}).", remedy=_REMEDY) from error
    for address in found:
        if _interface_with(ipaddress.ip_address(address)):
            return address
    raise _not_here(host)


def interface_of(address: str) -> str:
    """The network interface of this host that has a numeric address. Raises StartupError."""
    name = _interface_with(ipaddress.ip_address(address))
    if not name:
        raise _not_here(address)
    return name


def _not_here(host: str) -> StartupError:
    return StartupError(
        f"A link cannot listen on {host}: no network interface of this host has that address.", remedy=_REMEDY
    )


def _interface_with(wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family in {socket.AF_INET, socket.AF_INET6} and _covers(address.address, wanted):
                return name
    return ""


def _covers(own: str, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True for the address itself; a loopback interface has all of 127.0.0.0/8."""
    address = ipaddress.ip_address(own.partition("%")[0])
    return address == wanted or (address.is_loopback and wanted.is_loopback and address.version == wanted.version)


def listen(host: str, ports: range = ANY_PORT) -> socket.socket:
    """A listener on a port of `ports`, the first that is free; on any if that is empty. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports[:-1]:
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=family, backlog=128)
    return socket.create_server((host, ports[-1] if ports else 0), family=family, backlog=128)
