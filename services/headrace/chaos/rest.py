"""Whether the cluster is whole and at rest: everybody attached, nothing running, every page and slab free again.

It waits, with a deadline, and says what is still in the way. It changes nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from headrace.chaos.cluster import Cluster
from headrace.chaos.members import DOORS, WORKERS, Kind, Member, of_kind
from headrace.chaos.probes import fleet, gauges, lives, not_ready

# Longer than a receiver waits for frames of a transfer that was given up: thirty seconds.
REST_S = 45.0
WHOLE_S = 40.0
_POLL_S = 0.1

Complaints = list[str]


async def until_whole(client: httpx.AsyncClient, cluster: Cluster, within_s: float = WHOLE_S) -> Complaints:
    """Wait until every door would answer and every router has every worker's present life; what is amiss if that
    takes too long."""
    return await _until_none(lambda: _amiss(client, cluster), within_s)


async def until_at_rest(
    client: httpx.AsyncClient, cluster: Cluster, within_s: float = REST_S
) -> tuple[Complaints, float]:
    """Wait until no worker holds anything, by its own account and by the routers'; what is still held, one sentence a
    worker, and the seconds it took."""
    began = time.monotonic()
    held = await _until_none(lambda: _held(client, cluster), within_s)
    return held, time.monotonic() - began


async def silent(client: httpx.AsyncClient, cluster: Cluster) -> Complaints:
    """Those that do not say that they live, one sentence each."""
    running = [member for member in cluster.members if cluster.runs(member.name)]
    alive = await asyncio.gather(*(lives(client, member) for member in running))
    return [
        f"{member.name} does not say that it lives" for member, well in zip(running, alive, strict=True) if not well
    ]


async def _until_none(look: Callable[[], Awaitable[Complaints]], within_s: float) -> Complaints:
    deadline = time.monotonic() + within_s
    while (complaints := await look()) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
    return complaints


async def _amiss(client: httpx.AsyncClient, cluster: Cluster) -> Complaints:
    doors = of_kind(cluster.members, *DOORS)
    reasons = await asyncio.gather(*(not_ready(client, door) for door in doors))
    routers = of_kind(cluster.members, Kind.ROUTER)
    seen = await asyncio.gather(*(fleet(client, router) for router in routers))
    absent = [
        f"{router.name} has no {name}"
        for router, status in zip(routers, seen, strict=True)
        for name, incarnation in cluster.incarnations.items()
        if _worker(status, name, incarnation) is None
    ]
    return [*filter(None, reasons), *absent]


async def _held(client: httpx.AsyncClient, cluster: Cluster) -> Complaints:
    workers, routers = of_kind(cluster.members, *WORKERS), of_kind(cluster.members, Kind.ROUTER)
    pages = await asyncio.gather(*(gauges(client, worker) for worker in workers))
    seen = await asyncio.gather(*(fleet(client, router) for router in routers))
    complaints = [_of_page(worker, page) for worker, page in zip(workers, pages, strict=True)]
    for router, status in zip(routers, seen, strict=True):
        complaints.append(_of_router(router, status))
        complaints += [
            _of_load(router, name, _worker(status, name, incarnation))
            for name, incarnation in cluster.incarnations.items()
        ]
    return [complaint for complaint in complaints if complaint]


def _of_page(worker: Member, page: Mapping[str, float] | None) -> str:
    if page is None:
        return f"{worker.name} does not show its metrics"
    free, all_blocks = page["headrace_kv_blocks_free"], page["headrace_kv_blocks"]
    if free != all_blocks:
        return f"{worker.name} has {free:g} of {all_blocks:g} pages free"
    jobs = page["vllm:num_requests_running"] + page["vllm:num_requests_waiting"]
    if jobs:
        return f"{worker.name} has {jobs:g} jobs"
    held = {name: count for name, count in page.items() if name.startswith("headrace_kv_slabs{") and count}
    held.pop("headrace_kv_slabs{free}", None)
    return f"{worker.name} has slabs that are not free: {held}" if held else ""


def _of_router(router: Member, status: Mapping[str, Any] | None) -> str:
    if status is None:
        return f"{router.name} does not show its fleet"
    running, waiting = status["requests_running"], status["requests_waiting"]
    return f"{router.name} has {running} requests running, {waiting} waiting" if running or waiting else ""


def _of_load(router: Member, name: str, worker: Mapping[str, Any] | None) -> str:
    """Credits are what a worker has slots for, less the jobs that still hold something."""
    if worker is None:
        return f"{router.name} has no {name}"
    load, most = worker["load"], worker["info"]["max_jobs"]
    if load["running"] or load["waiting"] or load["free_blocks"] != load["total_blocks"]:
        return f"{router.name} sees {name} busy: {load}"
    return f"{router.name} has {load['credits']} credits of {most} at {name}" if load["credits"] != most else ""


def _worker(status: Mapping[str, Any] | None, name: str, incarnation: str) -> Mapping[str, Any] | None:
    """The attached worker of that name and life, as a router shows it."""
    for worker in () if status is None else status["workers"]:
        ref = worker["info"]["ref"]
        if ref["worker"] == name and ref["incarnation"] == incarnation and worker["attached"]:
            found: Mapping[str, Any] = worker
            return found
    return None
