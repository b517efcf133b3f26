"""The launcher of this machine: processes are children of ours and share its cores."""

from collections.abc import Sequence

import psutil

from headrace.placement.fit import require_fit
from headrace.placement.processes import Bundle, Child, ProcessSpec

_ADDRESS = "127.0.0.1"


class ProcessLauncher:
    """Implements Launcher. Cores are shared, so only a process that alone wants more than the machine has is refused.
    GPUs cannot be handed out: every child sees all of them."""

    def __init__(self) -> None:
        self._lives: dict[str, Child] = {}

    async def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            require_fit([spec], [Bundle(psutil.cpu_count() or 1)], "Ask for less, or let Ray place it.")
            spec.log.expanduser().parent.mkdir(parents=True, exist_ok=True)

    async def launch(self, spec: ProcessSpec) -> Child:
        self._lives[spec.name] = await Child.start(spec.on(_ADDRESS))
        return self._lives[spec.name]

    async def close(self) -> None:
        for life in self._lives.values():
            await life.stop(0.0)
