"""GatewayServer: uvicorn inside an event loop that somebody else owns, with the signals somebody else handles."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from headrace.core.address import joined
from headrace.core.errors import StartupError
from headrace.gateway.connection import Connection

_BACKLOG = 2048
_KEEP_ALIVE_S = 65
_log = structlog.get_logger()


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, that says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class GatewayServer:
    """Serves `app` on `host:port` (port 0: any free one) from `start` until `stop`; used once."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound, once `start` has returned."""
        return self._port

    async def start(self) -> None:
        """Returns when requests are accepted. Raises StartupError if the port cannot be bound."""
        listener = _bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._server = _Server(_config(self._app))
        self._serving = asyncio.create_task(self._server.serve([listener]), name="gateway")
        up = asyncio.create_task(self._server.up.wait())
        try:
            await asyncio.wait((up, self._serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._serving.done():
            await self._serving
            raise StartupError("The HTTP server ended while it was starting.")
        _log.info("gateway.listening", host=self._host, port=self._port)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, give running answers `grace_s` seconds (rounded up), then cut them off."""
        if self._server is None or self._serving is None:
            return
        self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self._server.should_exit = True
        await self._serving
        cut_off = list(self._server.server_state.tasks)
        await asyncio.gather(*cut_off, return_exceptions=True)
        _log.info("gateway.stopped", cut_off=len(cut_off))


def _config(app: ASGIApp) -> uvicorn.Config:
    """Our own access log and exceptions' log lines replace uvicorn's."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only on sockets that name their protocol: without it every token would wait
    # for the acknowledgement of the one before, up to 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"Cannot listen for HTTP on {joined(host, port)}: {error.strerror or error}.",
            remedy="Free the port or choose another with --port.",
        ) from error
    return listener
