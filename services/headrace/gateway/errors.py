"""Errors as OpenAI clients expect them: HTTP status from the core table, body `{"error": {...}}`.

Owns OpenAI's words for our codes. It decides no status of its own.
"""

import math

import structlog
from starlette.responses import JSONResponse

from headrace.core.errors import (
    HeadraceError,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    RouterLost,
    Unauthenticated,
    Unavailable,
)

GONE_STATUS = 499
_log = structlog.get_logger()
_INTERNAL = "The server failed to answer this request; its log has the cause under the x-request-id."
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    GONE_STATUS: "request_cancelled",
}


class BadParameter(InvalidRequest):
    """A field of the body is wrong. param: its path (`messages[0].content`); code: OpenAI's word for the fault."""

    def __init__(self, message: str, *, param: str | None, code: str = "invalid_value", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, param=param)
        self.code = code


def error_body(error: HeadraceError) -> dict[str, object]:
    """The JSON object that tells a client what went wrong. Defects of ours are not described to it."""
    message = _INTERNAL if isinstance(error, InternalError) else str(error)
    return _shape(message, _type(error.kind.http_status), _param(error), _code(error))


def error_response(error: HeadraceError) -> JSONResponse:
    """The whole HTTP answer, with Retry-After where waiting helps."""
    headers: dict[str, str] = {}
    status = error.kind.http_status
    if status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 0.0)))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=status, headers=headers)


def routing_response(status: int, message: str, headers: dict[str, str]) -> JSONResponse:
    """What the router of URLs refuses (404, 405), in the same shape."""
    code = "method_not_allowed" if status == 405 else "unknown_url"
    return JSONResponse(_shape(message, _type(status), None, code), status_code=status, headers=headers)


def report_defect(error: HeadraceError, request_id: str) -> None:
    """Log an error that is ours and is hidden from the client; every other one is told to the client alone."""
    if isinstance(error, InternalError):
        _log.error("request.defect", request_id=request_id, reason=str(error), exc_info=error)


def _shape(message: str, kind: str, param: str | None, code: str) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _type(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _param(error: HeadraceError) -> str | None:
    return "model" if isinstance(error, ModelNotFound) else error.param


def _code(error: HeadraceError) -> str:
    if isinstance(error, BadParameter):
        return error.code
    if isinstance(error, RouterLost):
        # Which process it was that stopped is nothing that a client could act upon.
        return Unavailable.kind.code
    return "invalid_api_key" if isinstance(error, Unauthenticated) else error.kind.code
