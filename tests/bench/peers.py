"""Runs the peers' kit, one server after the other, round after round, and keeps one report of it all.

Owns what a server is asked: the workloads that a goal names for it, since some take minutes to start and to answer.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.goals import Goal, median, shown

HERE = Path(__file__).resolve().parent
OURS = HERE / "headrace.toml"
# As the kit writes it, with "machine" added.
Report = dict[str, Any]


def asked(goals: Sequence[Goal]) -> dict[str, tuple[str, ...]]:
    """Of each server the workloads that goals name, in their order."""
    wanted: dict[str, dict[str, None]] = {}
    for goal in goals:
        for server in (goal.server, *goal.against):
            wanted.setdefault(server, {}).update({goal.workload: None} if goal.workload else {})
    return {server: tuple(workloads) for server, workloads in wanted.items()}


def config_for(kit: str, ours: str, workloads: Sequence[str]) -> str:
    """The kit's peers.toml with our servers before its own, and of its workloads those that are named."""
    server, workload = (re.search(rf"^\[\[{kind}\]\]", kit, re.MULTILINE) for kind in ("server", "workload"))
    if server is None or workload is None:
        raise SystemExit("The kit's peers.toml has no [[server]], or no [[workload]] after them.")
    parts = re.split(r"^(?=\[\[workload\]\])", kit[workload.start() :], flags=re.MULTILINE)
    kept = [part for part in parts if part and tomllib.loads(part)["workload"][0]["name"] in workloads]
    return f"{kit[: server.start()]}{ours}{kit[server.start() : workload.start()]}{''.join(kept)}"


def our_servers() -> str:
    headrace, cores = Path(sys.executable).with_name("headrace"), len(os.sched_getaffinity(0))
    return OURS.read_text().replace("{headrace}", str(headrace)).replace("{cores}", str(cores))


def compare(
    kit: Path, peers: Path, wanted: Mapping[str, Sequence[str]], rounds: int, *, into: Path, machine: str
) -> Iterator[Report]:
    """Adds `rounds` rounds of the servers in `wanted` to the report `into`, or begins it; yields it after each server.

    Raises SystemExit if the kit brings no report of a server.
    """
    for server in [*wanted] * rounds:
        config = into.with_suffix(".toml")
        config.write_text(config_for((kit / "peers.toml").read_text(), our_servers(), wanted[server]))
        brought = into.with_suffix(".one.json")
        brought.unlink(missing_ok=True)
        command = [peers / "hf" / "bin" / "python", kit / "compare.py", "--peers", peers, "--config", config]
        subprocess.run([*command, "--only", server, "--json", brought], stdout=subprocess.DEVNULL, check=False)
        if not brought.exists():
            raise SystemExit(f"The kit brought no report of {server}; what it said stands above.")
        before = json.loads(into.read_text()) if into.exists() else {"machine": machine}
        report = added(before, json.loads(brought.read_text()))
        into.write_text(json.dumps(report, indent=1) + "\n")
        yield report


def added(report: Report, brought: Report) -> Report:
    """One report of both. Its date, its load and its machine are those of the first."""
    results = {name: list(runs) for name, runs in report.get("results", {}).items()}
    for name, runs in brought["results"].items():
        results.setdefault(name, []).extend(runs)
    versions = {**report.get("versions", {}), **brought["versions"]}
    return {**brought, **report, "versions": versions, "results": results}


def peers_table(report: Report, kit: str) -> str:
    """Every figure of every server as Markdown, medians of its rounds. kit: its peers.toml."""
    results = report["results"]
    metrics = [(each["name"], path) for each in tomllib.loads(kit)["workload"] for path in each["metrics"]]
    lines = [f"- {name}: {version}; {_counted(len(results[name]))}" for name, version in report["versions"].items()]
    lines += ["", f"| workload | metric | {' | '.join(results)} |", f"|---|---|{'---:|' * len(results)}"]
    for workload, metric in [("", "startup_s"), *metrics]:
        figures = [median(runs, workload, metric) for runs in results.values()]
        if any(figure is not None for figure in figures):
            cells = [workload or "(server)", metric, *map(shown, figures)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _counted(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"
