"""One network namespace a process, joined by a bridge: partitions between them, and cables of a given rate.

Owns what it makes on this machine, by a prefix of names and a network, and removes it. Several runs at once have a
prefix and a network each. Needs root, `ip` and, for a rate, `tc`.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.core.errors import StartupError

PARTING = ("ip",)
"""The tools that partitions take."""

_PACKAGES = {"ip": "iproute2", "tc": "iproute2"}
_NOBODY = "02:00:00:00:00:00"
_NAMESPACES = Path("/run/netns")
_LOCKS = Path("/run")
_PLACES = 10
_COMMAND_S = 20.0
_DEVICES = Path("/sys/class/net")
_LOOK_S = 0.005
_OUTSIDE, _FIRST_HOST = 1, 2
# What a cable lets through at once after a pause, and what may wait before it. The kernel looks at its clock rarely.
_BURST_S, _LEAST_BURST, _QUEUE = 0.002, 16384, "20ms"


def obstacle(tools: Sequence[str] = PARTING) -> str:
    """Why there can be no namespaces here; "" if there can. tools: those that are needed."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = _missing(tools)
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed" if missing else ""


def way_out(tools: Sequence[str] = PARTING) -> str:
    """What to do about the obstacle that there is, as the beginning of a sentence."""
    if os.geteuid() != 0:
        return "Become root"
    return f"Install {' and '.join(dict.fromkeys(_PACKAGES.get(tool, tool) for tool in _missing(tools)))}"


def _missing(tools: Sequence[str]) -> list[str]:
    return [tool for tool in tools if shutil.which(tool) is None]


class Namespaces:
    """Those of one run. place: its number among the runs on this machine. gbits: what each one's cable carries, 10^9
    bits a second each way; 0: as much as the machine can.

    hosts: address by name. outside: ours, by which all of them reach us. A process runs inside by the words of
    `inside` before its own.
    """

    def __init__(self, place: int, names: Sequence[str], gbits: float = 0.0) -> None:
        self._gbits = gbits
        self._prefix = f"hrc{place}-"
        self._bridge = f"{self._prefix}bridge"
        network = f"10.77.{place}"
        self.outside = f"{network}.{_OUTSIDE}"
        self.hosts = {name: f"{network}.{_FIRST_HOST + number}" for number, name in enumerate(names)}
        self._cuts: set[tuple[str, str]] = set()

    def inside(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._own(name))

    async def cut(self, name: str, others: Iterable[str]) -> None:
        """Lose every packet between `name` and the others, silently and both ways: each of two takes the other to be at
        an address of the bridge that nobody has."""
        for other in others:
            self._cuts.add((name, other))
            for here, there in ((name, other), (other, name)):
                await self._neighbour(here, "replace", there, "lladdr", _NOBODY, "nud", "permanent")

    async def heal(self, name: str) -> None:
        """End every partition that was made at this namespace."""
        ended = {cut for cut in self._cuts if cut[0] == name}
        self._cuts -= ended
        for _, other in sorted(ended):
            if (other, name) not in self._cuts:
                for here, there in ((name, other), (other, name)):
                    await self._neighbour(here, "del", there)

    async def _neighbour(self, here: str, verb: str, there: str, *where: str) -> None:
        own = ("ip", "-n", self._own(here))
        await _run(*own, "neighbour", verb, self.hosts[there], *where, "dev", "eth0")

    async def make(self) -> None:
        """Raises StartupError for what the machine refuses."""
        lines = [
            f"link add {self._bridge} type bridge",
            f"addr add {self.outside}/24 dev {self._bridge}",
            f"link set {self._bridge} up",
        ]
        for name in self.hosts:
            own = self._own(name)
            lines += [
                f"netns add {own}",
                f"link add {own} type veth peer name eth0 netns {own}",
                f"link set {own} master {self._bridge} up",
            ]
        await _run("ip", "-batch", "-", text="\n".join(lines))
        for name, address in self.hosts.items():
            inner = f"addr add {address}/24 dev eth0\nlink set eth0 up\nlink set lo up"
            await _run("ip", "-n", self._own(name), "-batch", "-", text=inner)
            if self._gbits:
                await self._limit(self._own(name))
        await self._until_up()

    async def remove(self) -> None:
        """Every namespace of the prefix, with what still runs in it, and the bridge. Safe to repeat."""
        for _, pid in await self.inhabitants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # First: a namespace lives on without its name while sockets in it say their last words, and so does its cable.
        for device in [name for _, name in socket.if_nameindex() if name.startswith(self._prefix)]:
            await _run("ip", "link", "del", device)
        for name in self.left():
            await _run("ip", "netns", "del", name)

    async def inhabitants(self) -> tuple[tuple[str, int], ...]:
        """Which process runs in which namespace."""
        found = [(name, await _run("ip", "netns", "pids", name)) for name in self.left()]
        return tuple((name, int(pid)) for name, pids in found for pid in pids.split())

    def left(self) -> list[str]:
        """The namespaces of the prefix that there are."""
        return sorted(path.name for path in _NAMESPACES.glob(f"{self._prefix}*"))

    def _own(self, name: str) -> str:
        """What the namespace is called on this machine, and our end of its cable."""
        return f"{self._prefix}{name}"

    async def _until_up(self) -> None:
        """The kernel tells itself on its own time that a cable has two ends. Before, nobody should listen there."""
        states = [_DEVICES / device / "operstate" for device in (self._bridge, *map(self._own, self.hosts))]
        try:
            async with asyncio.timeout(_COMMAND_S):
                while any(state.read_text().strip() != "up" for state in states):
                    await asyncio.sleep(_LOOK_S)
        except (TimeoutError, OSError) as error:
            raise StartupError(
                f"Cables between namespaces were not seen to be up within {_COMMAND_S:g} s.",
                remedy=f"See whether {_DEVICES} shows the devices of this process's own network namespace.",
            ) from error

    async def _limit(self, own: str) -> None:
        """Both ends of a namespace's cable send at the rate, and no faster."""
        burst = max(_LEAST_BURST, round(self._gbits * 1e9 / 8 * _BURST_S))
        rate = ("root", "tbf", "rate", f"{self._gbits:g}gbit", "burst", str(burst), "latency", _QUEUE)
        await _run("tc", "qdisc", "add", "dev", own, *rate)
        await _run("tc", "-n", own, "qdisc", "add", "dev", "eth0", *rate)


@asynccontextmanager
async def namespaces(names: Sequence[str], gbits: float = 0.0) -> AsyncIterator[Namespaces]:
    """One for each name, while the block runs. What an earlier run left at the same place is removed first. gbits: see
    Namespaces.

    Raises StartupError for what the machine refuses.
    """
    with _place() as place:
        made = Namespaces(place, names, gbits)
        await made.remove()
        try:
            await made.make()
            yield made
        finally:
            await made.remove()


@contextlib.contextmanager
def _place() -> Iterator[int]:
    """The first that no other run has. It is ours for as long as this process lives."""
    for place in range(_PLACES):
        with (_LOCKS / f"headrace-chaos-{place}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield place
            return
    raise StartupError(f"{_PLACES} other runs have namespaces already.", remedy="Wait until one has ended.")


async def _run(*words: str, text: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            out, err = await process.communicate(text.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StartupError(
            f"`{' '.join(words)}` ended with code {process.returncode}: {err.decode().strip()}",
            remedy="Namespaces need root and CAP_NET_ADMIN; the command does without them too, see its --help.",
        )
    return out.decode()
