"""`headrace health`: asks one process whether it is well. For health checks of containers, which need no other tool."""

import asyncio
from dataclasses import dataclass

import httpx

from headrace.core.address import parted
from headrace.core.errors import HeadraceError, StartupError, Unavailable
from headrace.rpc.health import check


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """address: an http:// or https:// URL, or the host:port of a gRPC server."""

    address: str
    timeout_s: float


def ask(options: HealthOptions) -> int:
    """Print one sentence. Exit code 0 if the process is well, 1 if not."""
    try:
        if options.address.startswith(("http://", "https://")):
            _ask_http(options)
        else:
            _require_address(options.address)
            asyncio.run(check(options.address, options.timeout_s))
    except HeadraceError as error:
        print(error.message)
        return 1
    print(f"{options.address} is ready.")
    return 0


def _require_address(address: str) -> None:
    """gRPC writes to standard error itself what it makes of one that is none."""
    try:
        parted(address)
    except ValueError as error:
        raise StartupError(f"{address!r} is neither a URL nor host:port of gRPC: {error}.") from None


def _ask_http(options: HealthOptions) -> None:
    try:
        # A proxy from the environment is for the internet, not for this machine.
        answer = httpx.get(options.address, timeout=options.timeout_s, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{options.address} does not answer: {error or type(error).__name__}.") from None
    if not answer.is_success:
        raise Unavailable(f"{options.address} answered {answer.status_code}: {answer.text}")
