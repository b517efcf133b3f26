"""Errors become statuses and are the same errors again; gRPC's own failures get a meaning."""

import grpc
import pytest

from headrace.core import errors
from headrace.rpc.errors import ERROR_KEY, from_call, to_failure


def rpc_error(
    status: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str | bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), metadata, details=details, debug_error_string="")


@pytest.mark.parametrize("kind", errors.ERRORS)
def test_every_kind_keeps_its_status_and_itself(kind: type[errors.HeadraceError]) -> None:
    failure = to_failure(kind("It failed.", remedy="Wait.", retry_after_s=2.5))
    assert failure.status.name == kind.kind.grpc_status
    assert failure.details == "It failed. Wait."
    error = from_call(rpc_error(failure.status, failure.details, failure.trailing), "host:1")
    assert type(error) is kind
    assert (error.message, error.remedy, error.retry_after_s) == ("It failed.", "Wait.", 2.5)


def test_an_error_fits_into_metadata_whatever_it_says() -> None:
    failure = to_failure(errors.InvalidRequest("\ud800" + "😀" * 10_000))
    percent_encoded = 3 * len(failure.details.encode())
    assert percent_encoded + len(dict(failure.trailing)[ERROR_KEY]) < 8192


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", errors.Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "… Connection refused", errors.Unavailable),
        (grpc.StatusCode.CANCELLED, "CANCELLED", errors.Unavailable),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 4)", errors.InvalidRequest),
        (grpc.StatusCode.UNAUTHENTICATED, "", errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, "", errors.Forbidden),
        (grpc.StatusCode.INVALID_ARGUMENT, "", errors.InvalidRequest),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", errors.InternalError),
        (grpc.StatusCode.UNKNOWN, "?", errors.InternalError),
    ],
)
def test_foreign_failures_have_a_meaning(
    status: grpc.StatusCode, details: str, kind: type[errors.HeadraceError]
) -> None:
    error = from_call(rpc_error(status, details), "host:1")
    assert type(error) is kind
    assert "host:1" in error.message
