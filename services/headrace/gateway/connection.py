"""One HTTP connection: how to hear that its client leaves, and how to end it when its client does not read.

Closing waits until what was written has left, which a client that does not read can put off for ever. Owns the handle
under which whoever answers a request finds the way out. Knows no requests.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_KEY = "headrace.cut"
# On, for no time: the system throws away what it still has to send, too.
_NO_LINGER = struct.pack("ii", 1, 0)
# What a client may have sent ahead of its next answers: beyond it nothing is heard of it until the present one.
_AHEAD_BYTES = 65_536


class Connection(H11Protocol):
    """uvicorn's, but requests carry the means to cut it, and it is listened to while one waits for its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _severable(self.app, lambda: _reset(transport))

    def handle_events(self) -> None:
        super().handle_events()
        # uvicorn stops reading at a request that comes before the last one's answer, and would not hear the end.
        ahead = self.flow.read_paused and self.conn.their_state is h11.DONE
        if ahead and len(self.conn.trailing_data[0]) < _AHEAD_BYTES:
            self.flow.resume_reading()


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
