"""What runs inside a Ray actor: a process as its child, on whatever machine Ray chose.

It does not know Ray. The child hangs on the actor by its lifeline, so that an actor that dies takes the child along.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.core.errors import StartupError
from headrace.placement.processes import Child, ProcessSpec

# What `ready` hands over: what the child said, and, if it failed, the sentence and its remedy.
Outcome = tuple[dict[str, str], str, str]


@dataclass(slots=True)
class _Life:
    """One life, and what is awaited of it. Several may wait for one thing: a caller that died still does."""

    spec: ProcessSpec
    child: Child
    ready: asyncio.Task[dict[str, str]] | None = None
    end: asyncio.Task[int] | None = None


class ProcessActor:
    """The lives of one process, one at a time. `start` comes first; the others are about the life with that pid."""

    def __init__(self, inherit: Callable[[], Mapping[str, str]]) -> None:
        """inherit: the part of this machine's environment that the child gets under its own variables."""
        self._inherit = inherit
        self._life: _Life | None = None

    async def start(self, spec: ProcessSpec, machine_address: str, grace_s: float) -> int:
        """Begin a life; its process id. It runs under this machine's interpreter and logs on this machine.

        A life of just this spec that runs goes on: whoever started it is gone, and the caller takes it over. One of
        another spec is ended first, with this grace.
        """
        if self._life is not None and self._life.child.running:
            if self._life.spec == spec:
                return self._life.child.pid
            await self._life.child.stop(grace_s)
        here = spec.on(machine_address)
        here.log.parent.mkdir(parents=True, exist_ok=True)
        argv, environment = (sys.executable, *here.argv[1:]), {**self._inherit(), **spec.environment}
        child = await Child.start(replace(here, argv=argv, environment=environment))
        self._life = _Life(spec, child)
        return child.pid

    async def ready(self, pid: int, within_s: float) -> Outcome:
        """As Child.ready, with a StartupError as a value: an exception would arrive wrapped in a remote traceback."""
        life = self._of(pid)
        life.ready = life.ready or asyncio.create_task(life.child.ready(within_s))
        try:
            return await asyncio.shield(life.ready), "", ""
        except StartupError as error:
            return {}, error.message, error.remedy

    async def ended(self, pid: int) -> int:
        life = self._of(pid)
        life.end = life.end or asyncio.create_task(life.child.ended())
        return await asyncio.shield(life.end)

    async def stop(self, pid: int, grace_s: float) -> int:
        return await self._of(pid).child.stop(grace_s)

    async def clear(self, grace_s: float) -> None:
        """End whatever runs, for whoever has no use for it."""
        if self._life is not None:
            await self._life.child.stop(grace_s)

    def _of(self, pid: int) -> _Life:
        assert self._life is not None, "start comes first"
        assert self._life.child.pid == pid, "one life at a time"
        return self._life
