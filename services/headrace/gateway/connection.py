"""One HTTP connection, and how to end it when its client does not read.

Closing waits until what was written has left, which a client that does not read can put off for ever. Owns the handle
under which whoever answers a request finds the way out. Knows no requests.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_KEY = "headrace.cut"


class Connection(H11Protocol):
    """uvicorn's, but requests carry the means to cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _severable(self.app, transport.abort)


def cut(scope: Scope) -> None:
    """Reset the connection of this request; what its client has not read is lost. Nothing, if it has no such way."""
    if abort := scope.get(_KEY):
        abort()


def _severable(app: ASGIApp, abort: Callable[[], None]) -> ASGIApp:
    async def severable(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = abort
        await app(scope, receive, send)

    return severable
