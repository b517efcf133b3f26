"""Waits until a frontend says over HTTP that its cluster is ready."""

import asyncio
from collections.abc import Callable

import httpx

_ANSWER_WITHIN_S = 5.0
_POLL_S = 0.05


async def until_ready(url: Callable[[], str], within_s: float) -> str:
    """Ask again and again; returns "" once it is ready, and what stood in the way if that takes longer.

    url: where the frontend is now. One that died is started again, maybe elsewhere: then that counts.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    # A proxy from the environment is for the internet, not for this machine.
    async with httpx.AsyncClient(timeout=_ANSWER_WITHIN_S, trust_env=False) as client:
        while obstacle := await _obstacle(client, url()):
            if asyncio.get_running_loop().time() > deadline:
                return obstacle
            await asyncio.sleep(_POLL_S)
    return ""


async def _obstacle(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer = await client.get(f"{url}/ready")
    except httpx.HTTPError as error:
        return f"{url} does not answer: {error or type(error).__name__}"
    return "" if answer.status_code == httpx.codes.OK else answer.text
