"""Work for a client that may leave: it is cancelled as soon as the client is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from headrace.core.errors import Cancelled

T = TypeVar("T")


async def while_present(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or Cancelled if the client leaves first; `work` has ended when this returns.

    `receive` must have given the whole body before: the next thing it says is that the client has left.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("The client left before the answer was complete.")
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
