"""Work for a client that may leave: it is cancelled as soon as the client is gone."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

from headrace.core.errors import Cancelled

T = TypeVar("T")


async def while_present(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or Cancelled if the client leaves first; `work` has ended when this returns.

    `receive` must have given the whole body before: the next thing it says is that the client has left.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_cancel_when_gone(receive, working))
    try:
        await asyncio.wait((working,))
        if watching.done() and watching.result():
            raise Cancelled("The client left before the answer was complete.")
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _cancel_when_gone(receive: Receive, working: asyncio.Future[Any]) -> bool:
    """Whether the work was still under way. It is cancelled here and not by whoever waits for both, who would be two
    turns of the event loop later: where no core is free a turn takes milliseconds."""
    with suppress(Exception):  # a connection of which nothing can be heard any more is gone
        while (await receive())["type"] != "http.disconnect":
            pass
    return working.cancel()
