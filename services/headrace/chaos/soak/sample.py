"""A sample: what each process has and holds at one moment, by the kernel's account and by its own.

Looks at processes and asks them; judges nothing.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from headrace.chaos.cluster import Cluster
from headrace.chaos.members import WORKERS, Kind, Member, of_kind
from headrace.chaos.probes import gauges, redis_keys

_PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm/"

MEMORY = "memory"
THREADS = "threads"
COUNTS = ("fds", "sockets", THREADS, "tasks", "shared", "keys")
"""Things of which a process needs some, and not more with time."""
HELD = ("jobs", "pages", "slabs")
"""What is held for requests: nothing at rest. Slabs also count those that are set aside."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process. values: by measure; memory is the resident set in bytes, everything else a count. A measure that
    the process does not have, or does not tell, is missing."""

    member: str
    pid: int
    values: Mapping[str, int]


async def sample(client: httpx.AsyncClient, cluster: Cluster) -> tuple[Sample, ...]:
    """Of every process that runs."""
    running = [member for member in cluster.members if cluster.runs(member.name)]
    # By the kernel's account first: asking opens connections. Routers last: they ask their workers, who would be
    # answering them when we ask.
    seen = {member.name: kernels_account(cluster.pid(member.name)) for member in running}
    told: dict[str, Mapping[str, int]] = {}
    for together in ([one for one in running if one.kind is not Kind.ROUTER], of_kind(running, Kind.ROUTER)):
        answers = await asyncio.gather(*(_told(client, member) for member in together))
        told |= {member.name: answer for member, answer in zip(together, answers, strict=True)}
    return tuple(
        Sample(member.name, cluster.pid(member.name), {**seen[member.name], **told[member.name]}) for member in running
    )


def kernels_account(pid: int) -> Mapping[str, int]:
    """Of a process of ours, or of anybody for root; nothing of one that has ended."""
    process = _PROC / str(pid)
    with contextlib.suppress(OSError):
        links = _links(process / "fd")
        status = (process / "status").read_text()
        return {
            MEMORY: _number(r"VmRSS:\s+(\d+) kB", status) * 1024,
            "fds": len(links),
            "sockets": sum(link.startswith("socket:") for link in links),
            THREADS: _number(r"Threads:\s+(\d+)", status),
            "shared": len(set(re.findall(rf"{_SHARED_MEMORY}\S+", (process / "maps").read_text()))),
        }
    return {}


def _links(directory: Path) -> Sequence[str]:
    found = []
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            found.append(os.readlink(directory / name))
    return found


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


async def _told(client: httpx.AsyncClient, member: Member) -> Mapping[str, int]:
    if member.kind is Kind.REDIS:
        keys = await redis_keys(member.host, member.port)
        return {} if keys is None else {"keys": keys}
    page = await gauges(client, member)
    if page is None:
        return {}
    told = {"tasks": page["headrace_process_tasks"]}
    if member.kind in WORKERS:
        slabs = {name: count for name, count in page.items() if name.startswith("headrace_kv_slabs{")}
        told |= {
            "jobs": page["headrace_jobs_live"],
            "pages": page["headrace_kv_blocks"] - page["headrace_kv_blocks_free"],
            "slabs": sum(count for name, count in slabs.items() if name != "headrace_kv_slabs{free}"),
        }
    return {name: int(value) for name, value in told.items()}
