"""One HTTP connection, and how to end it when its client does not read.

Closing waits until what was written has left, which a client that does not read can put off for ever. Owns the handle
under which whoever answers a request finds the way out. Knows no requests.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_KEY = "headrace.cut"
# On, for no time: the system throws away what it still has to send, too.
_NO_LINGER = struct.pack("ii", 1, 0)


class Connection(H11Protocol):
    """uvicorn's, but requests carry the means to cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _severable(self.app, lambda: _reset(transport))


def cut(scope: Scope) -> None:
    """Reset the connection of this request; what its client has not read is lost. Nothing, if it has no such way."""
    if reset := scope.get(_KEY):
        reset()


def _severable(app: ASGIApp, reset: Callable[[], None]) -> ASGIApp:
    async def severable(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = reset
        await app(scope, receive, send)

    return severable


def _reset(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
