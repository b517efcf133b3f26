"""The first command of an attachment: who the router is, and whether it knows the fleet's token."""

import asyncio
import hmac
from collections.abc import AsyncIterator

from headrace.core.errors import DeadlineExceeded, InvalidRequest, Unauthenticated
from headrace.core.jobs import Command, Hello

_HELLO_S = 10.0


async def greet(commands: AsyncIterator[Command], token: str) -> Hello:
    """The router's Hello. token: what it must know, empty for none.

    Raises Unauthenticated for a wrong token, InvalidRequest for no Hello, DeadlineExceeded for a router that says
    nothing.
    """
    try:
        async with asyncio.timeout(_HELLO_S):
            hello = await anext(commands, None)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The router did not say Hello within {_HELLO_S:g} s.") from error
    if not isinstance(hello, Hello):
        raise InvalidRequest("The first command of an attachment must be Hello.")
    if token and not hmac.compare_digest(hello.token.encode(), token.encode()):
        raise Unauthenticated("The worker token is wrong.", remedy="Give routers and workers the same token.")
    return hello
