"""Every metric is documented, and those of a process show what it holds."""

import asyncio
import re
import socket
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.telemetry.metrics import GatewayMetrics, RouterMetrics, WorkerMetrics

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
DOCUMENTED = dict(re.findall(r"^\| `([a-z0-9_:]+)` \| (\w+) \|", PAGE, flags=re.MULTILINE))
KINDS = (GatewayMetrics, RouterMetrics, WorkerMetrics)


def exported(registry: CollectorRegistry) -> dict[str, str]:
    """Each metric's name as it is asked for, and its type."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in registry.collect()
    }


def test_documentation_has_exactly_what_is_exported() -> None:
    everything: dict[str, str] = {}
    for kind in KINDS:
        everything |= exported(kind().registry)
    assert everything == DOCUMENTED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_shows_what_it_holds(kind: type[GatewayMetrics | RouterMetrics | WorkerMetrics]) -> None:
    metrics = kind()
    metrics.process.watch(asyncio.get_running_loop())

    def value(name: str) -> float:
        found = metrics.registry.get_sample_value(name)
        assert found is not None
        return found

    assert value("process_resident_memory_bytes") > 1e6
    files, tasks, threads = value("process_open_fds"), value("headrace_process_tasks"), threading.active_count()
    assert (tasks, value("headrace_process_threads")) == (len(asyncio.all_tasks()), threads)
    # One more of each shows, and is gone when it is gone. A scraper looks from a thread of its own.
    one, other = socket.socketpair()
    with one, other:
        more = asyncio.create_task(asyncio.Event().wait())
        assert (value("process_open_fds"), value("headrace_process_tasks")) == (files + 2, tasks + 1)
        assert await asyncio.to_thread(value, "headrace_process_tasks") == tasks + 1
    more.cancel()
    await asyncio.wait({more})
    assert (value("process_open_fds"), value("headrace_process_tasks")) == (files, tasks)
