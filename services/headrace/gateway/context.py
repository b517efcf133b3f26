"""The frame around every HTTP request: its id, its access line, and the last net under unhandled exceptions.

Knows no OpenAI fields and no bodies.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import InternalError, Unavailable
from headrace.gateway.errors import GONE_STATUS, error_response

ID_HEADER = "x-request-id"
PROBES = frozenset({"/health", "/ready", "/metrics"})
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_ID = 128
# A stopping server waits no longer than this for a client to take its last words.
_FAREWELL_S = 1.0
_KEY = "headrace.context"
_log = structlog.get_logger()


@dataclass(slots=True)
class RequestContext:
    """What is known of one HTTP request. id: what its answer carries; tenant_salt: from its key, or empty.

    outcome: how it ended: "answered", "client_gone", "cut_off" by a stopping server or because the client
    did not read, "failed".
    """

    id: str
    tenant_salt: str = ""
    outcome: str = "answered"
    status: int = 0


def context_of(scope: Scope) -> RequestContext:
    """The context that ContextMiddleware put into `scope`."""
    context = scope[_KEY]
    assert isinstance(context, RequestContext)
    return context


class RequestIds:
    """Gives every generation an id of its own, as near to what the caller wished as that allows.

    Remembers the last `capacity` ids; a wish among them gets a random suffix.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._taken: OrderedDict[str, None] = OrderedDict()

    def claim(self, wish: str) -> str:
        """`wish` if it is new, else a variation of it; never longer than 128 characters."""
        unique = wish[:_MAX_ID]
        while unique in self._taken:
            unique = f"{wish[: _MAX_ID - 9]}-{secrets.token_hex(4)}"
        self._taken[unique] = None
        if len(self._taken) > self._capacity:
            self._taken.popitem(last=False)
        return unique


class ContextMiddleware:
    """Outermost ASGI layer. Sets the context, stamps `x-request-id`, logs one line, turns exceptions into 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(_requested_id(scope) or secrets.token_hex(16))
        scope[_KEY] = context
        began = time.monotonic()
        try:
            await self._answer(context, scope, receive, _stamped(context, send))
        finally:
            _log_access(scope, context, time.monotonic() - began)

    async def _answer(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            context.outcome = "client_gone"
        except asyncio.CancelledError:
            context.outcome = "cut_off"
            if not context.status:
                await farewell(error_response(cut_off())(scope, receive, send))
            raise
        except Exception:
            _log.exception("request.crashed", request_id=context.id, path=scope["path"])
            context.outcome = "failed"
            if context.status:
                raise
            await error_response(InternalError("An exception reached the gateway's edge."))(scope, receive, send)


def cut_off() -> Unavailable:
    """What callers are told whose answer a stopping server ends. Only such a server cancels requests."""
    return Unavailable("The server is stopping and the answer was not complete in time.", remedy="Try again.")


async def farewell(words: Awaitable[None]) -> None:
    """Send `words` while being cancelled: in little time, or not at all."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await words


def _requested_id(scope: Scope) -> str | None:
    wish = Headers(scope=scope).get(ID_HEADER, "")
    return wish if _WELL_FORMED.fullmatch(wish) else None


def _stamped(context: RequestContext, send: Send) -> Send:
    async def stamped(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            MutableHeaders(scope=message)[ID_HEADER] = context.id
        await send(message)

    return stamped


def _log_access(scope: Scope, context: RequestContext, seconds: float) -> None:
    write = _log.debug if scope["path"] in PROBES else _log.info
    write(
        "request.answered" if context.outcome == "answered" else "request.broken",
        method=scope["method"],
        path=scope["path"],
        status=context.status or GONE_STATUS,
        outcome=context.outcome,
        ms=round(seconds * 1000, 1),
        request_id=context.id,
    )
