"""Writes the tables of docs/performance.md: the engine against the machine, a worker's memory, Headrace against peers.

    python tests/bench/performance.py [--rounds N] [--only engine|memory|peers] [--compared REPORT.json]

Run by `make performance`, on a machine that does nothing else. Engine and memory take two minutes each. The peers' part
needs two directories in the environment, and is skipped without them:

    PEERS_KIT  the kit: compare.py, load.py, peers.toml
    PEERS      the peers' environments, as the kit's setup made them

Its report stays in build/performance, with the machine that it was made on, and --compared writes the tables out of one
that is there already; the Markdown that the kit made of it stands beside it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

from bench.goals import goals_table, read_goals

from headrace.bench.machine import this_machine
from headrace.bench.report import Report, figures, from_json, head, shares

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "build" / "performance"
ENGINES = {"bfloat16": ("--dtype", "bfloat16"), "int4": ("--quantization", "int4")}


def put(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if len(block.findall(page)) != 1:
        raise SystemExit(f"The page has no place for {name}, or several: write <!-- {name} --> and <!-- /{name} -->.")
    return block.sub(lambda match: f"{match[1]}{text.rstrip()}\n{match[2]}", page)


def engine_tables(report: Report, day: str) -> str:
    """The report as Markdown, with the day it was made."""
    lines = [f"Measured on {day}.", "", *(f"- {line}" for line in head(report))]
    for header, rows in (figures(report), shares(report)):
        marks = ["---", *("---:" for _ in header[1:])]
        lines += ["", *(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))]
    return "\n".join(lines)


def peers_toml(kit: str, ours: str, headrace: str, cores: int) -> str:
    """The kit's servers and workloads with our servers before them: ratios are about the first."""
    first = re.search(r"^\[\[server\]\]", kit, re.MULTILINE)
    if first is None:
        raise SystemExit("The kit's peers.toml has no [[server]].")
    own = ours.replace("{headrace}", headrace).replace("{cores}", str(cores))
    return f"{kit[: first.start()]}{own}{kit[first.start() :]}"


def measure_engine(page: str, day: str) -> str:
    for name, flags in ENGINES.items():
        command = [sys.executable, "-m", "headrace.cli", "bench", "engine", "--json", *flags]
        print(f"engine   {name}: {' '.join(command[1:])}", file=sys.stderr)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        page = put(page, f"engine {name}", engine_tables(from_json(json.loads(done.stdout)), day))
    return page


def measure_memory(page: str, day: str, machine: str) -> str:
    """A worker over its goal is in the table, and no reason to leave the table out."""
    command = [sys.executable, HERE / "memory.py"]
    print("memory   tests/bench/memory.py", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in {0, 1} or not done.stdout:
        raise SystemExit("tests/bench/memory.py brought no table; what it said stands above.")
    return put(page, "memory", memory_table(done.stdout, day, machine))


def memory_table(table: str, day: str, machine: str) -> str:
    return f"Measured on {day}, on {machine}.\n\n{table}"


def compare(kit: Path, peers: Path, rounds: int, machine: str) -> Path:
    """Runs the kit; its report, which names the machine and what a server did not survive."""
    KEPT.mkdir(parents=True, exist_ok=True)
    report = KEPT / "compared.json"
    for old in (report, report.with_suffix(".md")):
        old.unlink(missing_ok=True)
    headrace, cores = Path(sys.executable).with_name("headrace"), len(os.sched_getaffinity(0))
    ours = (HERE / "headrace.toml").read_text()
    config = KEPT / "peers.toml"
    config.write_text(peers_toml((kit / "peers.toml").read_text(), ours, str(headrace), cores))
    command = [peers / "hf" / "bin" / "python", kit / "compare.py", "--peers", peers, "--config", config]
    outputs = ["--json", report, "--markdown", report.with_suffix(".md")]
    subprocess.run([*command, "--rounds", str(rounds), *outputs], check=False)
    if not report.exists() or not report.with_suffix(".md").exists():
        raise SystemExit("The kit brought no report; what it said stands above.")
    made = {**json.loads(report.read_text()), "machine": machine}
    report.write_text(json.dumps(made, indent=1) + "\n")
    return report


def peers_tables(page: str, report: Path) -> str:
    """The page with the kit's table and the goals out of its report."""
    found = json.loads(report.read_text())
    rounds = max(len(runs) for runs in found["results"].values())
    machine = found.get("machine", "a machine that the report does not name")
    said = f"Measured on {found['date']}, medians of {rounds} rounds, on {machine}; load before"
    said += f" {found['load_average_before']:.1f}."
    table = report.with_suffix(".md").read_text()
    page = put(page, "peers", f"{said} Ratios above 1: Headrace is ahead.\n\n{table}")
    return put(page, "goals", goals_table(read_goals(HERE / "goals.toml"), found["results"]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/performance.md.")
    parser.add_argument("--rounds", type=int, default=3, help="of the peers' part; the tables have medians")
    parser.add_argument("--only", choices=("engine", "memory", "peers"), help="leave the other parts as they are")
    parser.add_argument("--compared", type=Path, help="a report of the kit, instead of running it")
    wanted = parser.parse_args()
    machine = this_machine()
    today = date.today().isoformat()
    if wanted.only in {None, "engine"}:
        PAGE.write_text(measure_engine(PAGE.read_text(), today))
    if wanted.only in {None, "memory"}:
        PAGE.write_text(measure_memory(PAGE.read_text(), today, machine.words))
    if wanted.only in {"engine", "memory"}:
        return 0
    kit, peers, report = os.environ.get("PEERS_KIT"), os.environ.get("PEERS"), wanted.compared
    if report is None and not (kit and peers):
        print("peers    skipped: PEERS_KIT and PEERS do not say where the kit and its servers are", file=sys.stderr)
        return 0
    if report is None and kit and peers:
        report = compare(Path(kit).resolve(), Path(peers).resolve(), wanted.rounds, machine.words)
    assert report is not None
    PAGE.write_text(peers_tables(PAGE.read_text(), report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
