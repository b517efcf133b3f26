"""The gRPC server of a process: any set of the three services, with health checking and reflection."""

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.core.address import parted
from headrace.core.admin import Admin
from headrace.core.errors import RouterLost, StartupError, Unavailable
from headrace.rpc.calls import Calls
from headrace.rpc.contracts import Fleet, Inference, WorkerService
from headrace.rpc.handlers import FleetHandlers, InferenceHandlers, WorkerHandlers
from headrace.rpc.health_service import ReasonedHealth
from headrace.rpc.options import Keepalive, server_options
from headrace.rpc.v1 import fleet_pb2_grpc, inference_pb2_grpc, worker_pb2_grpc

# The health service's name for "this process is alive": SERVING from start to stop, ready or not.
LIVE = "live"
# How long calls that were told to end may take to say so, and health watches to say that nothing is served.
_FAREWELL_S = 0.25
# Longer than any calls are given: gRPC is to end none while those that run have their grace.
_NEVER_S = 365 * 24 * 3600.0

_log = structlog.get_logger()


class _Offer(NamedTuple):
    name: str
    service: Any
    handlers: Callable[[Any, Calls], Any]
    add: Callable[[Any, grpc.aio.Server], None]


class Server:
    """A running server; made by `serve`, ended by `stop`. port: where it listens, also if 0 was asked for."""

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        names: tuple[str, ...],
        checks: ReasonedHealth,
        calls: Calls,
    ) -> None:
        self.port = port
        self._server = server
        self._names = names
        self._checks = checks
        self._calls = calls
        self._stopping = asyncio.Lock()

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """What health checks answer, for the whole server ("") and for each of its services. reason: why it is not
        ready, as the end of a sentence about it."""
        self._checks.reason = "" if ready else reason
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._checks.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give those that run `grace_s` seconds, then end them with an Unavailable.

        Safe to repeat, also beside one under way: both return when the server has stopped.
        """
        async with self._stopping:
            await self._checks.enter_graceful_shutdown()
            # gRPC's server bears one stop at a time: of two, the later ends the calls of a server that the other has
            # freed, and the process with it. So the first, which refuses new calls, is given up before the last begins.
            refusing = asyncio.create_task(self._server.stop(_NEVER_S))
            try:
                await self._calls.drain(grace_s)
                await asyncio.wait({refusing}, timeout=_FAREWELL_S)
            finally:
                refusing.cancel()
                await asyncio.wait({refusing})
                # Only health watches and reflection streams can be left now, and they never end by themselves.
                await self._server.stop(None)
        _log.info("server.stopped", port=self.port)


async def serve(
    address: str,
    *,
    inference: Inference | None = None,
    fleet: Fleet | None = None,
    worker: WorkerService | None = None,
    admin: Admin = Admin(),  # noqa: B008 — a frozen value
    keepalive: Keepalive = Keepalive(),  # noqa: B008 — a frozen value
) -> Server:
    """Serve the given implementations on `address` (`host:port`, port 0 for any free one). admin: who may change the
    fleet.

    Health is NOT_SERVING until `set_ready(True)`, but for the name `LIVE`. Raises StartupError if the address cannot
    be listened on.
    """
    calls = Calls(Unavailable if worker is not None else RouterLost)
    server = grpc.aio.server(options=server_options(keepalive))
    offers = [
        _Offer("Inference", inference, InferenceHandlers, inference_pb2_grpc.add_InferenceServicer_to_server),
        _Offer("Fleet", fleet, partial(FleetHandlers, admin=admin), fleet_pb2_grpc.add_FleetServicer_to_server),
        _Offer("Worker", worker, WorkerHandlers, worker_pb2_grpc.add_WorkerServicer_to_server),
    ]
    offers = [offer for offer in offers if offer.service is not None]
    for offer in offers:
        offer.add(offer.handlers(offer.service, calls), server)
    names = tuple(f"headrace.rpc.v1.{offer.name}" for offer in offers)
    checks = ReasonedHealth()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    running = Server(server, _listen(server, address), names, checks, calls)
    await running.set_ready(False)
    await checks.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    _log.info("server.listening", port=running.port, services=names)
    return running


def _listen(server: grpc.aio.Server, address: str) -> int:
    """The port that `server` now listens on."""
    obstacle = _obstacle(address)
    if obstacle is None:
        try:
            return server.add_insecure_port(address)
        except RuntimeError as error:
            obstacle = str(error)
    raise StartupError(
        f"Cannot listen on {address}: {obstacle}.",
        remedy="Choose another address or port, or end the process that has it.",
    )


def _obstacle(address: str) -> str | None:
    """Why nobody could listen on `address`, in words that gRPC's own error lacks; None if somebody can."""
    try:
        host, port = parted(address)
    except ValueError as error:
        return str(error)
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(name)
    except OSError as error:
        return "the port is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return None
