"""Errors across gRPC: a `HeadraceError` becomes a status with trailing metadata, and is the same error again.

The statuses stand in the table of `core.errors`; this file also gives a meaning to the failures that gRPC itself
reports, where no peer of ours had the last word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from headrace.core.errors import (
    DeadlineExceeded,
    Forbidden,
    HeadraceError,
    InternalError,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from headrace.rpc.codec.failures import decode_error, encode_error, sendable
from headrace.rpc.v1 import inference_pb2 as pb

ERROR_KEY = "headrace-error-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"

_OWN_MEANING = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What `ServicerContext.abort` takes."""

    status: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str | bytes], ...]


def to_failure(error: HeadraceError) -> Failure:
    """The status of `error`. Tells gRPC not to retry by itself: the peer has answered."""
    return Failure(
        status=grpc.StatusCode[error.kind.grpc_status],
        details=sendable(str(error)),
        trailing=((ERROR_KEY, encode_error(error).SerializeToString()), (_PUSHBACK_KEY, "-1")),
    )


def from_call(error: grpc.aio.AioRpcError, address: str, lost: type[Unavailable] = Unavailable) -> HeadraceError:
    """The error that the peer at `address` sent, or what gRPC's own failure means: `lost`, if nothing reached the
    peer or nothing comes from it any more."""
    sent = _sent(error)
    return decode_error(sent) if sent is not None else _foreign(error, address, lost)


def _sent(error: grpc.aio.AioRpcError) -> pb.Error | None:
    trailing: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()  # type: ignore[assignment]
    found = (value for key, value in trailing if key == ERROR_KEY and isinstance(value, bytes))
    data = next(found, None)
    return pb.Error.FromString(data) if data is not None else None


def _foreign(error: grpc.aio.AioRpcError, address: str, lost: type[Unavailable]) -> HeadraceError:
    status, details = error.code(), error.details() or "no details"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{address} did not answer in time.")
    if "Connection refused" in details:
        return lost(f"Nothing listens on {address}.", remedy="Start it, or check the address.")
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or "RST_STREAM" in details:
        return lost(f"The connection to {address} failed: {details}.", remedy="Check that it runs, or wait.")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequest(f"A message for or from {address} is too large: {details}.")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return InternalError(f"{address} does not offer this call.", remedy="Check the address and the versions.")
    meaning = _OWN_MEANING.get(status, InternalError)
    return meaning(f"{address} refused the call with {status.name}: {details}.")
