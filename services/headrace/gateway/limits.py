"""Limits that protect the gateway itself: size of a body, number of answers being written at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import Overloaded, RequestTooLarge
from headrace.gateway.errors import error_response

_RETRY_AFTER_S = 1.0
# A client that is refused while it still writes sees a reset instead of the answer, so what it sends is read and
# thrown away, within reason.
_DISCARD_S = 2.0
_DISCARD_FACTOR = 4


class Slots:
    """Counts answers being written; refuses beyond `limit`. Used on one event loop, so it needs no lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """`count` slots for as long as the block runs. Raises Overloaded if so many are not free."""
        if self.taken + count > self._limit:
            raise Overloaded(
                f"This gateway is writing {self.taken} answers and takes at most {self._limit}.",
                remedy="Try again shortly.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count


class BodyLimitMiddleware:
    """Refuses bodies over `max_bytes`: by their declared length before anything is read, else while reading."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _declared_length(scope) > self._max_bytes:
            await _discard(receive, self._max_bytes * _DISCARD_FACTOR)
            await error_response(self._too_large())(scope, receive, send)
        else:
            await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                await _discard(receive, self._max_bytes * _DISCARD_FACTOR)
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The body is larger than {self._max_bytes} bytes.", remedy="Send a shorter prompt.")


def _declared_length(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isdecimal() else 0


async def _discard(receive: Receive, at_most: int) -> None:
    try:
        async with asyncio.timeout(_DISCARD_S):
            while at_most > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                at_most -= len(message["body"])
    except TimeoutError:
        return
