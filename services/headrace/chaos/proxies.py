"""The proxies before the workers' tcp links, one a life of a worker, for faults of single messages of that link.

Owns them. Which message is struck and how is `tcp_fault`'s.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.chaos.tcp_fault import TcpFault
from headrace.chaos.tcp_proxy import TcpProxy


class Proxies:
    """host: the address that the workers reach us at."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._of: dict[str, TcpProxy] = {}

    async def advertised(self, worker: str, address: str) -> str:
        """What the worker's link at `address` is to call itself, from now on. Raises OSError."""
        if former := self._of.pop(worker, None):
            await former.close()
        self._of[worker] = proxy = TcpProxy(address)
        return await proxy.start(self._host)

    @asynccontextmanager
    async def armed(self, workers: Sequence[str], fault: TcpFault) -> AsyncIterator[None]:
        """What peers say to each of the workers, and hear from it, meets the fault once."""
        proxies = [self._of[worker] for worker in workers]
        for proxy in proxies:
            proxy.arm(fault)
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.disarm()

    async def struck(self, worker: str, timeout_s: float) -> None:
        """Wait until the fault struck a message before this worker. Raises DeadlineExceeded."""
        await self._of[worker].struck(timeout_s)

    async def close(self) -> None:
        """Cut whatever still goes through one of them."""
        while self._of:
            _, proxy = self._of.popitem()
            await proxy.close()
