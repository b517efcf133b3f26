"""Runs: the requests that a router has now, each under its id, and when there are none any more. State only."""

import asyncio
from collections.abc import Iterator

from headrace.core.errors import InvalidRequest
from headrace.router.run import Run


class Runs:
    """Iterates over them, the oldest first."""

    def __init__(self) -> None:
        self._by_id: dict[str, Run] = {}
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._by_id.values()))

    def get(self, request: str) -> Run | None:
        return self._by_id.get(request)

    def require_new(self, request: str) -> None:
        """Raises InvalidRequest if one of this id runs."""
        if request in self._by_id:
            raise InvalidRequest(f"A request with the id {request!r} is running.", remedy="Give each its own id.")

    def enter(self, run: Run) -> None:
        self._by_id[run.request.id] = run
        self._none.clear()

    def leave(self, run: Run) -> None:
        """Twice is once, also if another of its id has come meanwhile."""
        if self._by_id.get(run.request.id) is run:
            del self._by_id[run.request.id]
        if not self._by_id:
            self._none.set()

    async def over(self, within_s: float) -> bool:
        """Whether there are none, at the latest after `within_s` seconds."""
        try:
            async with asyncio.timeout(within_s):
                await self._none.wait()
        except TimeoutError:
            return False
        return True
