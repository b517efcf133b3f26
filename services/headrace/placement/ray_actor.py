"""What runs inside a Ray actor: a process as its child, on whatever machine Ray chose.

It does not know Ray. The child hangs on the actor by its lifeline, so that an actor that dies takes the child along.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.core.errors import StartupError
from headrace.placement.processes import MACHINE_ADDRESS, Child, ProcessSpec

# What `ready` hands over: what the child said, and, if it failed, the sentence and its remedy.
Outcome = tuple[dict[str, str], str, str]


class ProcessActor:
    """The lives of one process, one at a time. `start` comes first; the others are about the life with that pid."""

    def __init__(self, inherit: Callable[[], Mapping[str, str]]) -> None:
        """inherit: the part of this machine's environment that the child gets under its own variables."""
        self._inherit = inherit
        self._child: Child | None = None

    async def start(self, spec: ProcessSpec, machine_address: str) -> int:
        """Begin a life; its process id. It runs under this machine's interpreter and logs on this machine."""
        log = spec.log.expanduser()
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = tuple(word.replace(MACHINE_ADDRESS, machine_address) for word in spec.argv[1:])
        environment = {**self._inherit(), **spec.environment}
        here = replace(spec, argv=(sys.executable, *argv), environment=environment, log=log)
        self._child = await Child.start(here)
        return self._child.pid

    async def ready(self, pid: int, within_s: float) -> Outcome:
        """As Child.ready, with a StartupError as a value: an exception would arrive wrapped in a remote traceback."""
        try:
            return await self._life(pid).ready(within_s), "", ""
        except StartupError as error:
            return {}, error.message, error.remedy

    async def ended(self, pid: int) -> int:
        return await self._life(pid).ended()

    async def stop(self, pid: int, grace_s: float) -> int:
        return await self._life(pid).stop(grace_s)

    def _life(self, pid: int) -> Child:
        assert self._child is not None, "start comes first"
        assert self._child.pid == pid, "one life at a time"
        return self._child
