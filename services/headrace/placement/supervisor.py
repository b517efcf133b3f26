"""The supervisor: keeps a set of processes running. One that died or left is started again, as a new incarnation.

Owns one task a process. It knows when all are ready; it does not know what they do.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

import structlog

from headrace.placement.ends import Ends
from headrace.placement.launcher import Launcher, Life
from headrace.placement.local import ProcessLauncher
from headrace.placement.processes import ProcessSpec

log = structlog.get_logger()

OnReady = Callable[[ProcessSpec, int, dict[str, str]], None]


class Supervisor:
    """Starts processes, restarts those that end, stops all in the reverse order of `start`'s list.

    launcher places those that ask for bundles; the others run beside us. on_ready(spec, pid, what it said) is called
    each time one serves. ready_s: how long one may take to serve. deaths: processes that ended without being asked.
    """

    def __init__(
        self, on_ready: OnReady, launcher: Launcher | None = None, *, grace_s: float = 10.0, ready_s: float = 300.0
    ) -> None:
        self._on_ready = on_ready
        self._beside = ProcessLauncher()
        self._launcher = launcher or self._beside
        self._grace_s = grace_s
        self._ready_s = ready_s
        self._order: list[str] = []
        self._children: dict[str, Life] = {}
        self._serves_since: dict[str, float] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self.deaths = 0

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start all at once and wait until all serve. Raises StartupError if the launcher has no place for them, and as
        soon as one does not start; the rest run on."""
        await self._launcher.reserve([spec for spec in specs if spec.bundles])
        self._order.extend(spec.name for spec in specs)
        launches = [asyncio.create_task(self._launch(spec), name=f"launch {spec.name}") for spec in specs]
        try:
            await asyncio.gather(*launches)
        finally:
            for launch in launches:
                launch.cancel()
            await asyncio.gather(*launches, return_exceptions=True)
        for spec in specs:
            self._watchers[spec.name] = asyncio.create_task(self._keep(spec), name=f"keep {spec.name}")

    async def stop(self) -> None:
        """End every process: graceful first, hard after the grace. No restart happens any more."""
        self._stopping = True
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        for child in [self._children.pop(name) for name in reversed(self._order) if name in self._children]:
            code = await child.stop(self._grace_s)
            # It died a moment ago, or did not leave in its time.
            self.deaths += code == -signal.SIGKILL
            log.info("process.stopped", name=child.spec.name, pid=child.pid, code=code)

    async def _launch(self, spec: ProcessSpec) -> None:
        launcher = self._launcher if spec.bundles else self._beside
        child = await launcher.launch(spec)
        self._children[spec.name] = child
        try:
            said = await child.ready(self._ready_s)
        except Exception:
            await child.stop(self._grace_s)
            raise
        self._serves_since[spec.name] = time.monotonic()
        self._on_ready(spec, child.pid, said)

    async def _keep(self, spec: ProcessSpec) -> None:
        ends = Ends()
        while not self._stopping:
            code = await self._children[spec.name].ended()
            # A start that failed leaves the life before it here, which served once only.
            since = self._serves_since.pop(spec.name, None)
            end = ends.judge(code, None if since is None else time.monotonic() - since)
            pause_s = round(end.pause_s, 1)
            if end.left:
                log.info("process.left", name=spec.name, restart_in_s=pause_s)
            else:
                self.deaths += 1
                log.warning("process.died", name=spec.name, code=code, restart_in_s=pause_s)
            await asyncio.sleep(end.pause_s)
            try:
                await self._launch(spec)
            except Exception as error:
                # Whatever it was (a full disk, a machine without a process to spare) costs this try, not the child.
                log.error("process.restart_failed", name=spec.name, reason=str(error) or repr(error))
