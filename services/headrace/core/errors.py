"""The error tree: what can go wrong, whether trying again helps, and which status says so.

Owns the one table from error code to HTTP and gRPC status. It knows no transport: `gateway` and `rpc`
read the table, nobody else decides a status.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table. `grpc_status` is the name of a `grpc.StatusCode`."""

    code: str
    retryable: bool
    http_status: int
    grpc_status: str


class HeadraceError(Exception):
    """Base of every error a caller may see.

    `message` says what happened in one clear sentence; `remedy` says what to do about it;
    `retry_after_s` is set where waiting helps; `param` names the request's field that is wrong, where one is.
    """

    kind: ClassVar[ErrorKind] = ErrorKind("internal", False, 500, "INTERNAL")

    def __init__(
        self, message: str, *, remedy: str = "", retry_after_s: float | None = None, param: str | None = None
    ) -> None:
        if message.endswith("..") and not message.endswith("..."):
            message = message[:-1]  # it ends with a reason that is a sentence itself
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy
        self.retry_after_s = retry_after_s
        self.param = param


class InternalError(HeadraceError):
    """A defect of ours: an invariant does not hold."""


class InvalidRequest(HeadraceError):
    """The request can never be served as it was written."""

    kind = ErrorKind("invalid_request", False, 400, "INVALID_ARGUMENT")


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit into the model's context or the worker's pages."""

    kind = ErrorKind("context_length_exceeded", False, 400, "OUT_OF_RANGE")


class RequestTooLarge(InvalidRequest):
    """The body is larger than this server reads."""

    kind = ErrorKind("request_too_large", False, 413, "RESOURCE_EXHAUSTED")


class TakenUp(InvalidRequest):
    """Another router serves a request of this id by now: here it ends, and its answer comes from there."""

    kind = ErrorKind("taken_up", False, 409, "ABORTED")


class Unauthenticated(HeadraceError):
    """The key or token is missing or wrong."""

    kind = ErrorKind("unauthenticated", False, 401, "UNAUTHENTICATED")


class Forbidden(HeadraceError):
    """Who asks is known, and may not do this."""

    kind = ErrorKind("forbidden", False, 403, "PERMISSION_DENIED")


class NotFound(HeadraceError):
    """The thing asked for is not here, or no longer."""

    kind = ErrorKind("not_found", False, 404, "NOT_FOUND")


class ModelNotFound(NotFound):
    """No worker serves the model of that name."""

    kind = ErrorKind("model_not_found", False, 404, "NOT_FOUND")


class Overloaded(HeadraceError):
    """There is no room now; `retry_after_s` says when there may be."""

    kind = ErrorKind("overloaded", True, 429, "RESOURCE_EXHAUSTED")


class Cancelled(HeadraceError):
    """The caller left before the answer was complete."""

    kind = ErrorKind("cancelled", False, 499, "CANCELLED")


class Unavailable(HeadraceError):
    """What is needed to serve is not up: no worker of a role, a service that is away."""

    kind = ErrorKind("unavailable", True, 503, "UNAVAILABLE")


class WorkerLost(Unavailable):
    """A worker died or fell silent while it held the request."""

    kind = ErrorKind("worker_lost", True, 503, "ABORTED")


class RouterLost(Unavailable):
    """The request's router has gone, or is about to, before the answer was complete. Another one can take it up.

    Says nothing of the request: no router has refused it.
    """

    kind = ErrorKind("router_lost", True, 503, "UNAVAILABLE")


class TransferFailed(Unavailable):
    """KV pages did not arrive, or did not verify. They were not used."""

    kind = ErrorKind("transfer_failed", True, 503, "DATA_LOSS")


class DeadlineExceeded(HeadraceError):
    """The request's time ran out before its answer was complete."""

    kind = ErrorKind("deadline_exceeded", True, 504, "DEADLINE_EXCEEDED")


class StartupError(HeadraceError):
    """A process cannot start as it was asked to. Commands end with exit code 2."""

    kind = ErrorKind("startup_failed", False, 500, "FAILED_PRECONDITION")


ERRORS: tuple[type[HeadraceError], ...] = (
    InternalError,
    InvalidRequest,
    ContextLengthExceeded,
    RequestTooLarge,
    TakenUp,
    Unauthenticated,
    Forbidden,
    NotFound,
    ModelNotFound,
    Overloaded,
    Cancelled,
    Unavailable,
    WorkerLost,
    RouterLost,
    TransferFailed,
    DeadlineExceeded,
    StartupError,
)

BY_CODE: dict[str, type[HeadraceError]] = {error.kind.code: error for error in ERRORS}


def from_code(
    code: str, message: str, retry_after_s: float | None = None, remedy: str = "", param: str | None = None
) -> HeadraceError:
    """The error that another process reported. An unknown code (a newer peer) is `InternalError`."""
    return BY_CODE.get(code, InternalError)(message, remedy=remedy, retry_after_s=retry_after_s, param=param)
