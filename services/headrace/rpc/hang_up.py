"""Hang up: ends a call for good, whatever state it is in."""

from typing import Any


def hang_up(call: Any) -> None:
    """Cancel a call of a gRPC channel. Safe to repeat, and after its end.

    One whose write has failed calls itself done, so that `cancel` does nothing; its stream is still there then, with a
    task that waits for its end and with all that came and was not read. gRPC shows no other way to end that than the
    call inside, which is gRPC's own affair: where there is none such, the stream ends with its channel.
    """
    if not call.cancel() and (inner := getattr(call, "_cython_call", None)) is not None:
        inner.cancel("")
