"""Checks before anything starts, so that what cannot work is said in one sentence and not found in a log."""

import asyncio
import errno
import socket

from headrace.core.address import joined, parted
from headrace.core.errors import StartupError

_GIB = 2**30
_REACH_WITHIN_S = 3.0


def require_free_port(host: str, port: int, flag: str) -> None:
    """Raises StartupError if `port` cannot be bound now. Port 0 always can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartupError(*_refusal(error, host, port, flag)) from None


def _refusal(error: OSError, host: str, port: int, flag: str) -> tuple[str]:
    if error.errno == errno.EADDRINUSE:
        return (f"Port {port} on {host} is in use. Stop what listens there or choose another with {flag}.",)
    return (f"Cannot listen on {joined(host, port)}: {error.strerror or error}. Choose another address or {flag}.",)


async def require_reachable(address: str, what: str, flag: str) -> None:
    """Raises StartupError if nothing listens at host:port, or nothing answers in time."""
    try:
        host, port = parted(address)
    except ValueError as error:
        raise StartupError(
            f"{address!r} is no address of {what}: {error}.", remedy=f"Write {flag} host:port."
        ) from None
    try:
        async with asyncio.timeout(_REACH_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()
    except OSError:
        raise StartupError(f"No {what} answers at {address}.", remedy=f"Start it or correct {flag}.") from None


def require_memory(replicas: int, weight_bytes: int, kv_bytes: int, available_bytes: int) -> None:
    """Raises StartupError, with the arithmetic, if `replicas` times weights and KV pages exceed what is free."""
    needed = replicas * (weight_bytes + kv_bytes)
    if needed > available_bytes:
        raise StartupError(
            f"{replicas} workers need {needed / _GIB:.1f} GiB "
            f"({weight_bytes / _GIB:.2f} weights + {kv_bytes / _GIB:.2f} KV pages each) "
            f"but {available_bytes / _GIB:.1f} GiB of memory are free.",
            remedy="Ask for fewer workers or a smaller --kv-cache-memory-bytes.",
        )
