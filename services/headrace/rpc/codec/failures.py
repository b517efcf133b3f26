"""Codec of errors: what a `HeadraceError` says, without what it is in Python."""

from headrace.core.errors import HeadraceError, from_code
from headrace.rpc.v1 import inference_pb2 as pb

MAX_SENTENCE_BYTES = 1000


def encode_error(error: HeadraceError) -> pb.Error:
    """Never fails: what cannot be sent is replaced, and what does not fit into metadata is cut."""
    return pb.Error(
        code=error.kind.code,
        message=sendable(error.message),
        remedy=sendable(error.remedy),
        retry_after_s=error.retry_after_s,
        param=sendable(error.param or ""),
    )


def decode_error(message: pb.Error) -> HeadraceError:
    """An unknown code, of a newer peer, becomes InternalError."""
    retry_after_s = message.retry_after_s if message.HasField("retry_after_s") else None
    return from_code(message.code, message.message, retry_after_s, message.remedy, message.param or None)


def sendable(text: str) -> str:
    """`text` as valid Unicode of at most MAX_SENTENCE_BYTES bytes in UTF-8."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_SENTENCE_BYTES:
        return data.decode()
    return data[: MAX_SENTENCE_BYTES - 3].decode(errors="ignore") + "…"
