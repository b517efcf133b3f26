"""One network namespace a process, joined by a bridge, and partitions between them.

Owns what it makes on this machine, by one prefix of names, and removes it. Needs root, `ip` and `iptables`.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.core.errors import StartupError

PREFIX = "hrc-"
OUTSIDE = "10.77.0.1"
_BRIDGE = f"{PREFIX}bridge"
_NAMESPACES = Path("/run/netns")
_LOCK = Path("/run/headrace-chaos.lock")
_COMMAND_S = 20.0
_FIRST_HOST = 2


def obstacle() -> str:
    """Why there can be no namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} is not installed" if missing else ""


def addresses(names: Sequence[str]) -> dict[str, str]:
    """The address of each, in this order."""
    return {name: f"10.77.0.{_FIRST_HOST + place}" for place, name in enumerate(names)}


class Namespaces:
    """hosts: address by name. A process runs inside by the words of `inside` before its own."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts

    def inside(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{PREFIX}{name}")

    async def cut(self, name: str, others: Iterable[str]) -> None:
        """Drop every packet between `name` and the others, silently and both ways."""
        for other in others:
            address = self._hosts[other]
            for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
                await _run(*self.inside(name), "iptables", "-w", "-A", chain, side, address, "-j", "DROP")

    async def heal(self, name: str) -> None:
        """End every partition made at this namespace."""
        await _run(*self.inside(name), "iptables", "-w", "-F")

    async def _make(self) -> None:
        lines = [
            f"link add {_BRIDGE} type bridge",
            f"addr add {OUTSIDE}/24 dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        ]
        for name in self._hosts:
            own = f"{PREFIX}{name}"
            lines += [
                f"netns add {own}",
                f"link add {own} type veth peer name eth0 netns {own}",
                f"link set {own} master {_BRIDGE} up",
            ]
        await _run("ip", "-batch", "-", text="\n".join(lines))
        for name, address in self._hosts.items():
            inner = f"addr add {address}/24 dev eth0\nlink set eth0 up\nlink set lo up"
            await _run("ip", "-n", f"{PREFIX}{name}", "-batch", "-", text=inner)


@asynccontextmanager
async def namespaces(hosts: Mapping[str, str]) -> AsyncIterator[Namespaces]:
    """The namespaces while the block runs. What an earlier run left behind is removed first. One run at a time:
    raises StartupError while another has them, and for what the machine refuses."""
    with _alone():
        await _clear()
        made = Namespaces(hosts)
        try:
            await made._make()
            yield made
        finally:
            await _clear()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartupError(
                f"Another run has the namespaces {PREFIX}*.", remedy="Wait until it has ended."
            ) from None
        yield


async def _clear() -> None:
    """Remove every namespace of the prefix, with what still runs in it, and the bridge."""
    for name in _left():
        for pid in (await _run("ip", "netns", "pids", name)).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        await _run("ip", "netns", "del", name)
    if _BRIDGE in (name for _, name in socket.if_nameindex()):
        await _run("ip", "link", "del", _BRIDGE)


def _left() -> list[str]:
    return sorted(path.name for path in _NAMESPACES.glob(f"{PREFIX}*"))


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
            remedy="Namespaces need root and CAP_NET_ADMIN; --network=host does without, and parts nobody.",
        )
    return out.decode()
