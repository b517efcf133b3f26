"""The health check against a real server in every state it can be in."""

import pytest

from headrace.core.errors import DeadlineExceeded, InternalError, Unavailable
from headrace.rpc.health import check
from headrace.rpc.server import serve

WITHIN_S = 5.0


async def test_follows_a_server_from_starting_to_gone() -> None:
    server = await serve("127.0.0.1:0")
    address = f"127.0.0.1:{server.port}"
    try:
        # 1. It listens, but nobody has said that it is ready.
        with pytest.raises(Unavailable, match="not ready"):
            await check(address, WITHIN_S)
        # 2. Ready.
        await server.set_ready(True)
        await check(address, WITHIN_S)
        # 3. Draining, and for a reason that is told.
        await server.set_ready(False)
        with pytest.raises(Unavailable, match=r"is not ready\.$"):
            await check(address, WITHIN_S)
        await server.set_ready(False, "its engine “stands still”")
        with pytest.raises(Unavailable, match=r"is not ready: its engine “stands still”\.$"):
            await check(address, WITHIN_S)
    finally:
        await server.stop(0.0)
    # 4. Gone.
    with pytest.raises((Unavailable, DeadlineExceeded)):
        await check(address, 1.0)


async def test_a_service_that_the_server_has_not_is_not_well() -> None:
    server = await serve("127.0.0.1:0")
    await server.set_ready(True)
    try:
        with pytest.raises(InternalError, match="NOT_FOUND"):
            await check(f"127.0.0.1:{server.port}", WITHIN_S, "no.such.Service")
    finally:
        await server.stop(0.0)
