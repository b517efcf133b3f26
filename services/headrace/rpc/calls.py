"""Calls in progress at a server: each ends with an answer or one clear error, also when the server stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog

from headrace.core.errors import HeadraceError, InternalError, Unavailable
from headrace.rpc.errors import to_failure

Context = grpc.aio.ServicerContext[Any, Any]

# How long an implementation may take to give up what it holds for a call that was ended.
_CLOSING_S = 5.0

_log = structlog.get_logger()


class Calls:
    """The calls that a server's handlers are answering. stopping: as what it is told that the server ends them."""

    def __init__(self, stopping: type[Unavailable] = Unavailable) -> None:
        self._stopping = stopping
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def answering(self, method: str, context: Context) -> AsyncIterator[None]:
        """Run a handler's body. What it raises is told to the caller; defects are logged, here and once."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task in self._ended:
                await _refuse(context, self._stopping("The server is stopping.", remedy="Try another, or again later."))
            if task.cancelling():
                raise
            await _refuse(context, _defect(method))
        except HeadraceError as error:
            if type(error) is InternalError:
                _log.exception("call.failed", method=method)
            await _refuse(context, error)
        except Exception:
            await _refuse(context, _defect(method))
        finally:
            self._running.discard(task)
            self._ended.discard(task)

    async def drain(self, grace_s: float) -> None:
        """Wait for the running calls; after `grace_s` seconds end the rest."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=grace_s)
        for task in late:
            self._ended.add(task)
            task.cancel()
        if late:
            _log.info("calls.ended", count=len(late), grace_s=grace_s)
            _, stuck = await asyncio.wait(late, timeout=_CLOSING_S)
            if stuck:
                _log.error("calls.stuck", count=len(stuck), waited_s=_CLOSING_S)


def _defect(method: str) -> InternalError:
    _log.exception("call.failed", method=method)
    return InternalError(f"{method} failed by a defect of the server.", remedy="The server's log says more.")


async def _refuse(context: Context, error: HeadraceError) -> None:
    failure = to_failure(error)
    await context.abort(failure.status, failure.details, failure.trailing)
