"""A call that is hung up leaves nothing, however it went before."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headrace.rpc.hang_up import hang_up

UNREAD = 50
WITHIN_S = 5.0


async def _say_much(commands: AsyncIterator[bytes], context: Any) -> None:
    for _ in range(UNREAD):
        await context.write(b"word")
    async for _ in commands:
        return


def waiting() -> list[str]:
    """Tasks of gRPC that wait for the end of a call."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    return [name for name in names if "_handle_status" in name]


async def _fails(call: Any) -> None:
    # As gRPC's own write does when its stream has broken under it.
    call._cython_call.set_internal_error("the stream broke")
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()


async def _runs(call: Any) -> None:
    await call.read()


async def _ends(call: Any) -> None:
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
    assert call.done()


@pytest.mark.parametrize("course", [_runs, _ends, _fails])
async def test_nothing_waits_for_a_call_that_was_hung_up(course: Any) -> None:
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(_say_much)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/s/m")()
            assert await call.read() == b"word"
            assert waiting()
            await course(call)
            hang_up(call)
            hang_up(call)
        async with asyncio.timeout(WITHIN_S):
            while waiting():
                await asyncio.sleep(0)
    finally:
        await server.stop(None)


class _Foreign:
    """A call of a gRPC whose calls are made otherwise within; it is over."""

    def cancel(self) -> bool:
        return False


def test_a_call_without_our_grpcs_inside_is_left_as_it_is() -> None:
    hang_up(_Foreign())
