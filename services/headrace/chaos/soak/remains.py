"""What a cluster leaves on this machine once it was taken away: processes, shared memory, namespaces.

Looks and tells; removes nothing.
"""

import asyncio
import os
import time
from collections.abc import Set
from pathlib import Path

import psutil

from headrace.testbed.namespaces import Namespaces

_SHARED_MEMORY = Path("/dev/shm")
_GOES_S = 5.0
_POLL_S = 0.1


def shared_memory() -> frozenset[str]:
    """The segments that there are, of whomever."""
    return frozenset(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else frozenset()


async def remains(before: Set[str], networks: Namespaces | None) -> tuple[str, ...]:
    """One sentence each, of what has not gone within five seconds. before: the shared memory that was there."""
    deadline = time.monotonic() + _GOES_S
    while (left := await _left(before, networks)) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
    return left


async def _left(before: Set[str], networks: Namespaces | None) -> tuple[str, ...]:
    inside = () if networks is None else await networks.inhabitants()
    return (*_children(), *(f"process {pid} runs in namespace {name}" for name, pid in inside), *_orphans(before))


def _children() -> list[str]:
    children = psutil.Process().children(recursive=True)
    told = []
    for child in children:
        try:
            told.append(f"process {child.pid} ({child.name()}) is {child.status()}")
        except psutil.NoSuchProcess:
            continue
    return told


def _orphans(before: Set[str]) -> list[str]:
    """Segments of ours that came since and that nobody has in use: others on this machine make some too."""
    new = [_SHARED_MEMORY / name for name in sorted(shared_memory() - before)]
    own = [path for path in new if path.exists() and path.stat().st_uid == os.getuid()]
    used = _in_use() if own else frozenset()
    return [f"{path} is used by nobody" for path in own if str(path) not in used]


def _in_use() -> frozenset[str]:
    used: set[str] = set()
    for process in psutil.process_iter():
        try:
            used.update(each.path for each in process.memory_maps(grouped=True))
            used.update(each.path for each in process.open_files())
        except psutil.Error:
            continue
    return frozenset(used)
