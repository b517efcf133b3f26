"""Server-sent events: one HTTP response written while its events come.

The status line waits for the first event, at most one keepalive interval, so that what fails at once fails with
its own status. After that the status is 200; silence is filled with comments, and an error is an event
`{"error": {...}}` after which the stream ends *without* `[DONE]`: `[DONE]` means that the answer is complete. A client
that does not read is waited for until the response's time is up, and then cut off.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.core.errors import Cancelled, DeadlineExceeded, HeadraceError, InternalError
from headrace.gateway.connection import cut
from headrace.gateway.context import RequestContext, context_of, cut_off, farewell
from headrace.gateway.errors import error_body, error_response, report_defect
from headrace.gateway.presence import while_present

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_TURN = 8
# An event's lines end at CR and LF only, but many clients split them wherever a text's lines may end.
_LINE_ENDS = str.maketrans({character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"})
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_log = structlog.get_logger()


def event(data: dict[str, Any]) -> bytes:
    """One event, which is one line: JSON escapes the other line ends."""
    text = _encode(data)
    if not text.isascii():
        text = text.translate(_LINE_ENDS)
    return b"data: " + text.encode() + b"\n\n"


class EventStream(Response):
    """Sends `events`, each encoded already, then `[DONE]`. Closes them when the client leaves, and after `limit_s`
    seconds."""

    def __init__(self, events: AsyncGenerator[bytes, None], keepalive_s: float, limit_s: float) -> None:
        super().__init__(media_type="text/event-stream")
        self._events = events
        self._keepalive_s = keepalive_s
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        writer = _Writer(send, self._keepalive_s)
        try:
            async with asyncio.timeout(self._limit_s):
                error = await while_present(receive, self._write(writer, context))
                await self._end(writer, error, scope, receive, send)
        except Cancelled:
            context.outcome = "client_gone"
        except TimeoutError:
            context.outcome = "cut_off"
            await self._give_up(writer, scope)
        except asyncio.CancelledError:
            if writer.started:
                await farewell(writer.end(event(error_body(cut_off()))))
            raise
        finally:
            await self._events.aclose()

    async def _end(
        self,
        writer: "_Writer",
        error: HeadraceError | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if error is None:
            await writer.end(DONE)
        elif writer.started:
            context_of(scope).outcome = "failed"
            await writer.end(event(error_body(error)))
        else:
            await error_response(error)(scope, receive, send)

    async def _give_up(self, writer: "_Writer", scope: Scope) -> None:
        """The time is up: say so, unless the client has yet to take what was said before."""
        if writer.stuck:
            cut(scope)
        else:
            late = DeadlineExceeded(f"The answer was not complete after {self._limit_s:g} s.")
            await farewell(writer.end(event(error_body(late))))

    async def _write(self, writer: "_Writer", context: RequestContext) -> HeadraceError | None:
        """Writes until the events end; the error, if that is what ended them."""
        beating = asyncio.create_task(writer.keep_alive())
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    await writer.write(data)
        except HeadraceError as error:
            report_defect(error, context.id)
            return error
        except Exception:
            _log.exception("stream.crashed", request_id=context.id)
            return InternalError("An exception ended the stream.")
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        return None


class _Writer:
    """The response's body, written by two tasks: the events and the keepalive. stuck: a write did not come to its
    end, because the client does not read."""

    def __init__(self, send: Send, keepalive_s: float) -> None:
        self.started = False
        self.stuck = False
        self._send = send
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._written = 0
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            await self._start()
            await self._pass({"type": "http.response.body", "body": data, "more_body": True})
            self._last = self._loop.time()
        self._written += 1
        # Neither a source with chunks at hand nor a client that reads yields by itself: others must get their turn,
        # and so must the notice that this client is gone.
        if self._written % _TURN == 0:
            await asyncio.sleep(0)

    async def end(self, data: bytes) -> None:
        async with self._lock:
            await self._start()
            await self._pass({"type": "http.response.body", "body": data, "more_body": False})

    async def keep_alive(self) -> None:
        """Writes a comment whenever nothing was written for an interval. Runs until cancelled."""
        while True:
            wait = self._last + self._keepalive_s - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                await self.write(KEEPALIVE)

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self._pass({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})

    async def _pass(self, message: Message) -> None:
        self.stuck = True
        await self._send(message)
        self.stuck = False
