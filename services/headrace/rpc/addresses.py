"""Addresses of several servers in one line: `host:port,host:port`, where a name means every address that it has.

Knows nothing of what listens there.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from headrace.core.address import joined, parted
from headrace.core.errors import StartupError

_RESOLVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """A host, by name or address, and a port."""

    host: str
    port: int

    @property
    def fixed(self) -> bool:
        """It is an address already, so it never means another."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


def places(text: str) -> tuple[Place, ...]:
    """Those that `text` names, in its order. Raises StartupError if it is no such list."""
    return tuple(dict.fromkeys(_place(word.strip()) for word in text.split(",")))


async def located(wanted: tuple[Place, ...]) -> tuple[str, ...]:
    """`host:port` of every address of `wanted`, without repetition; nothing for a name that does not resolve now."""
    found = await asyncio.gather(*(_addresses(place) for place in wanted))
    return tuple(dict.fromkeys(address for addresses in found for address in addresses))


def _place(word: str) -> Place:
    try:
        host, port = parted(word)
        if not port:
            raise ValueError("it is not host:port with a port above 0")
    except ValueError as error:
        sentence = f"{word!r} is no address: {error}."
        raise StartupError(sentence, remedy="Separate several addresses with commas.") from None
    return Place(host, port)


async def _addresses(place: Place) -> tuple[str, ...]:
    try:
        async with asyncio.timeout(_RESOLVE_S):
            infos = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return ()
    # A host that has addresses of both kinds is one host: where there are some of the older kind, they are meant.
    older = [info for info in infos if info[0] == socket.AF_INET]
    return tuple(joined(str(info[4][0]), place.port) for info in older or infos)
