"""Asks a gRPC server's standard health service. It knows no contract of ours: any gRPC server can be asked."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.core.errors import Unavailable
from headrace.rpc.clients import connect
from headrace.rpc.errors import from_call
from headrace.rpc.health_service import REASON_KEY


async def check(address: str, timeout_s: float, service: str = "") -> None:
    """Return if `service` at `host:port` takes calls; "" is the whole server.

    Raises Unavailable if it does not or nothing listens, DeadlineExceeded after `timeout_s`.
    """
    async with connect(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            call = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
            answer = await call
            reason = dict(await call.trailing_metadata()).get(REASON_KEY, b"")
        except grpc.aio.AioRpcError as error:
            raise from_call(error, address) from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{address} is not ready{': ' if reason else ''}{reason.decode(errors='replace')}.")
