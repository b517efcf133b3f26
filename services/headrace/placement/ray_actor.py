"""What runs inside a Ray actor: one process as a supervised child, on whatever machine Ray chose.

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
    """One life of one process. Every method may be called from elsewhere, `start` first."""

    def __init__(self, inherit: Callable[[], Mapping[str, str]]) -> None:
        """inherit: the part of this machine's environment that the child gets under its own variables."""
        self._inherit = inherit
        self._child: Child | None = None

    async def start(self, spec: ProcessSpec, machine_address: str) -> int:
        """The child's process id. It runs under this machine's interpreter, with a log on this machine."""
        log = spec.log.expanduser()
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = tuple(word.replace(MACHINE_ADDRESS, machine_address) for word in spec.argv[1:])
        environment = {**self._inherit(), **spec.environment}
        self._child = await Child.start(
            replace(spec, argv=(sys.executable, *argv), environment=environment, log=log),
        )
        return self._child.pid

    async def ready(self, within_s: float) -> Outcome:
        """As Child.ready, with a StartupError as a value: an exception would arrive wrapped in a remote traceback."""
        try:
            return await self._started().ready(within_s), "", ""
        except StartupError as error:
            return {}, error.message, error.remedy

    async def ended(self) -> int:
        return await self._started().ended()

    async def stop(self, grace_s: float) -> int:
        return await self._started().stop(grace_s)

    def _started(self) -> Child:
        assert self._child is not None, "start comes first"
        return self._child
