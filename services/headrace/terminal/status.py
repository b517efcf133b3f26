"""`headrace status`: the fleet as a table for people, or as JSON."""

import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.terminal.client import answer, gateway


@dataclass(frozen=True, slots=True)
class StatusOptions:
    url: str
    api_key: str
    as_json: bool


def show(options: StatusOptions) -> int:
    """Print it. Exit code 0 if a chat would be answered, 1 if not."""
    with gateway(options.url, options.api_key) as client:
        status = answer(client.get("/v1/fleet"))
    if options.as_json:
        print(json.dumps(status, indent=2))
    else:
        if status["workers"]:
            Console().print(_table(status))
            for worker in status["workers"]:
                if unready := worker["load"].get("unready"):
                    print(f"{worker['info']['ref']['worker']} is not ready: {unready}.")
        for worker in status.get("refused", []):  # a router of an earlier version does not say
            print(f"{worker['info']['ref']['worker']} is refused: it {worker['reason']}.")
        print(_summary(status))
    return 0 if status["ready"] else 1


def _summary(status: dict[str, Any]) -> str:
    state = "ready" if status["ready"] else f"not ready: {status['reason'].rstrip('.')}"
    counts = f"{status['requests_running']} running, {status['requests_waiting']} waiting"
    return f"{state}; this gateway's routers have {counts}"


def _table(status: dict[str, Any]) -> Table:
    """Eighty columns hold a row: nobody should have to widen a terminal to see what is wrong."""
    table = Table("worker", "role", "state", "jobs", "free blocks", "credits", "pid", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for worker in status["workers"]:
        info, load = worker["info"], worker["load"]
        table.add_row(
            f"{info['ref']['worker']}@{info['ref']['incarnation'][:8]}",
            info["role"],
            _state(worker),
            f"{load['running']}+{load['waiting']}",
            f"{load['free_blocks']}/{load['total_blocks']}",
            str(load["credits"]),
            str(info["pid"]),
        )
    return table


def _state(worker: dict[str, Any]) -> str:
    if not worker["attached"]:
        return "away"
    if worker["draining"]:
        return "draining"
    return "not ready" if worker["load"].get("unready") else "attached"
