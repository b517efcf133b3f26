"""Mismatch: whether the routers that come can use this worker, and what to say of it while none can.

Owns that verdict. It knows no streams and no engine; everything happens on the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from headrace.core.errors import InvalidRequest
from headrace.core.jobs import Hello
from headrace.core.layout import weights_difference
from headrace.rpc.contracts import agreed, spoken

log = structlog.get_logger()


class Mismatch:
    """model, weights: what this worker serves. obstacle: why the last router that came left again, while there is no
    other; "" else."""

    def __init__(self, model: str, weights: bytes) -> None:
        self._model = model
        self._weights = weights
        self._changed = asyncio.Event()
        self.obstacle = ""

    def require_fit(self, hello: Hello, *, alone: bool) -> None:
        """Raises InvalidRequest, which tells the router why, unless it can use this worker. alone: no router is
        attached."""
        differs = self._protocol_difference(hello) or self._weights_difference(hello)
        if differs:
            log.warning("router.refused", router=hello.router, reason=differs)
        if not differs or alone:
            self._set(differs)
        if differs:
            raise InvalidRequest(
                f"This worker does not fit {hello.router}: {differs}.", remedy="Give both the same version and model."
            )

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, tell when the obstacle came or went."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await changed()

    def _set(self, obstacle: str) -> None:
        if obstacle != self.obstacle:
            self.obstacle = obstacle
            self._changed.set()

    def _protocol_difference(self, hello: Hello) -> str:
        if agreed(hello.protocol, hello.oldest) is not None:
            return ""
        return f"{hello.router} speaks {spoken(hello.protocol, hello.oldest)} and this worker {spoken()}"

    def _weights_difference(self, hello: Hello) -> str:
        differs = weights_difference(self._weights, hello.weights)
        return f"it and {hello.router} serve other models as {self._model}, {differs}" if differs else ""
