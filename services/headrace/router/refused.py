"""Refused: the members of the roster that this router attaches to under no circumstances, and that each was told so.

Owns the reasons and the tasks that tell them. Whom to attach to is otherwise not its affair.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable

import structlog

from headrace.core.fleet import RefusedWorker, WorkerInfo, WorkerRef

log = structlog.get_logger()


class Refused:
    """fits: why a worker cannot belong to this router's fleet, or "". tell: lets a worker know; runs until it does."""

    def __init__(
        self, fits: Callable[[WorkerInfo], str], tell: Callable[[WorkerInfo], Coroutine[object, object, None]]
    ) -> None:
        self._fits = fits
        self._tell = tell
        self._workers: dict[WorkerRef, RefusedWorker] = {}
        self._telling: dict[WorkerRef, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> tuple[RefusedWorker, ...]:
        """By name."""
        return tuple(self._workers[ref] for ref in sorted(self._workers))

    def sort_out(self, members: Iterable[WorkerInfo]) -> list[WorkerInfo]:
        """Those members that fit. The others are kept, logged and told, each once."""
        found = {info.ref: RefusedWorker(info, self._fits(info)) for info in members}
        refused = {ref: worker for ref, worker in found.items() if worker.reason}
        for ref, worker in refused.items():
            if self._workers.get(ref) != worker:
                log.warning("worker.refused", worker=str(ref), reason=worker.reason)
            if ref not in self._telling:
                self._telling[ref] = asyncio.create_task(self._tell(worker.info), name=f"refuse.{ref}")
        for ref in self._telling.keys() - refused.keys():
            self._leaving.add(task := self._telling.pop(ref))
            task.add_done_callback(self._leaving.discard)
            task.cancel()
        self._workers = refused
        return [worker.info for worker in found.values() if not worker.reason]

    async def stop(self) -> None:
        """Tell nobody any more."""
        telling = [*self._telling.values(), *self._leaving]
        self._telling.clear()
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
