"""The cluster that is struck, and its supervisor: every process is a child of ours, and is started again when asked.

Owns the lives of the processes. It strikes nobody by itself and judges nothing.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import structlog

from headrace.chaos.members import WORKERS, Kind, Member, Settings, of_kind, words
from headrace.chaos.probes import redis_answers
from headrace.core.errors import NotFound, StartupError
from headrace.placement.processes import Child, ProcessSpec
from headrace.store.server import command_line, find_server
from headrace.testbed.namespaces import Namespaces

log = structlog.get_logger()

READY_S = 60.0
STOP_S = 20.0
_POLL_S = 0.05


class Cluster:
    """members: who there is. networks: a namespace a process, or None: all share this machine's.

    incarnations: that of each worker that runs.
    """

    def __init__(
        self, members: Sequence[Member], settings: Settings, directory: Path, networks: Namespaces | None
    ) -> None:
        self.members = tuple(members)
        self.settings = settings
        self.directory = directory
        self.networks = networks
        self.incarnations: dict[str, str] = {}
        self._deaths: list[str] = []
        self._children: dict[str, Child] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        # How a process may end by what it was sent.
        self._expected: dict[str, set[int]] = {}

    def member(self, name: str) -> Member:
        """Raises NotFound."""
        for member in self.members:
            if member.name == name:
                return member
        raise NotFound(f"There is no process {name} in the cluster.")

    def pid(self, name: str) -> int:
        return self._children[name].pid

    def runs(self, name: str) -> bool:
        return name in self._children and self._children[name].running

    async def start(self) -> None:
        """Redis, then all others at once. Raises StartupError; `stop` takes away what came up."""
        (redis,) = of_kind(self.members, Kind.REDIS)
        await self.launch(redis.name)
        await self._launch_all([member.name for member in self.members if member is not redis])

    async def launch(self, name: str) -> None:
        """Start a process that does not run, at the place it always has. Raises StartupError if it does not serve."""
        member = self.member(name)
        child = await Child.start(self._spec(member))
        self._children[name] = child
        self._expected.pop(name, None)
        if member.kind is Kind.REDIS:
            await _until_answers(member)
        else:
            said = await child.ready(READY_S)
            if member.kind in WORKERS:
                self.incarnations[name] = said["incarnation"]
        self._watchers[name] = asyncio.create_task(self._watch(name, child), name=f"watch {name}")

    async def launch_missing(self) -> None:
        """Start again whoever has ended. Raises StartupError if one does not serve."""
        await self._launch_all([member.name for member in self.members if not self.runs(member.name)])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send it. The end that it is to bring is one that was asked for; that of a later one likewise."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._expected.setdefault(name, set()).add(_ends_with(number))
        if self.runs(name):
            os.kill(self.pid(name), number)

    def may_leave(self, name: str) -> None:
        """Somebody else asks it to end well: that end is no death."""
        self._expected.setdefault(name, set()).add(0)

    async def ended(self, name: str, within_s: float) -> bool:
        """Wait for the process to end; False if it does not within that time."""
        await asyncio.wait({self._watchers[name]}, timeout=within_s)
        return self._watchers[name].done()

    def take_deaths(self) -> tuple[str, ...]:
        """Ends that nobody asked for since this was last asked, in sentences."""
        deaths, self._deaths = tuple(self._deaths), []
        return deaths

    async def stop(self) -> tuple[str, ...]:
        """Ask every process to end, doors first and Redis last; returns those that had to be killed, or ended
        with an error."""
        hung: list[str] = []
        for kind in (Kind.GATEWAY, Kind.ROUTER, *WORKERS, Kind.REDIS):
            # One that ended before did not hang, and has nothing to be waited for.
            names = [member.name for member in of_kind(self.members, kind) if self.runs(member.name)]
            self._expected.update({name: {0, _ends_with(signal.SIGKILL)} for name in names})
            codes = await asyncio.gather(*(self._children[name].stop(STOP_S) for name in names))
            hung += [name for name, code in zip(names, codes, strict=True) if code != 0]
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        self._children.clear()
        return tuple(hung)

    async def _launch_all(self, names: Sequence[str]) -> None:
        """All at once; the first failure ends the waiting for the others."""
        launches = [asyncio.create_task(self.launch(name), name=f"launch {name}") for name in names]
        try:
            await asyncio.gather(*launches)
        finally:
            for launch in launches:
                launch.cancel()
            await asyncio.gather(*launches, return_exceptions=True)

    async def _watch(self, name: str, child: Child) -> None:
        code = await child.ended()
        if code not in self._expected.get(name, ()):
            self._deaths.append(f"{name} ended with code {code}")
            log.warning("process.ended", name=name, code=code)

    def _spec(self, member: Member) -> ProcessSpec:
        own = self._redis(member) if member.kind is Kind.REDIS else words(member, self.members, self.settings)
        inside = self.networks.inside(member.name) if self.networks else ()
        log_file = self.directory / f"{member.name}.log"
        return ProcessSpec(member.name, (*inside, *own), self.settings.environment, log_file)

    def _redis(self, member: Member) -> tuple[str, ...]:
        home = self.directory / member.name
        home.mkdir(exist_ok=True)
        listen = ("--port", str(member.port), "--bind", member.host, "--protected-mode", "no")
        return (*command_line(find_server(), home, os.getpid()), *listen)


async def _until_answers(redis: Member) -> None:
    try:
        async with asyncio.timeout(READY_S):
            while not await redis_answers(redis.host, redis.port):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StartupError(f"Redis does not answer at {redis.address} after {READY_S:g} s.") from None


def _ends_with(number: signal.Signals) -> int:
    """The exit code of a process that does as it is told."""
    return 0 if number is signal.SIGTERM else -number
