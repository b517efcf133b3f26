"""Writes the tables of docs/performance.md: engine, memory, hand-offs against bare links, cancels, peers.

    python tests/bench/performance.py [--only engine|memory|handoff|cancel|peers] [--rounds N]
        [--servers NAME,...] [--more]

Run by `make performance`, on a machine that does nothing else. Engine, memory and hand-offs take two minutes each,
cancels one. The peers' part needs two directories in the environment, and is skipped without them:

    PEERS_KIT  the kit: compare.py, load.py, peers.toml
    PEERS      the peers' environments, as the kit's setup made them

Its report stays in build/performance; --more adds rounds to it, of all servers or of some.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from bench.goals import goals_table, read_goals
from bench.memory import MISSED
from bench.peers import asked, compare, peers_table

from headrace.bench import handoff_report
from headrace.bench.machine import this_machine
from headrace.bench.report import Cells, Report, figures, from_json, head, shares
from headrace.testbed.namespaces import obstacle

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "performance.md"
COMPARED = ROOT / "build" / "performance" / "compared.json"
GOALS = read_goals(HERE / "goals.toml")
HANDOFFS = {"handoff": (), "handoff network": ("--gbits", "10")}
ENGINES = {"bfloat16": ("--dtype", "bfloat16"), "int4": ("--quantization", "int4")}


def put(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if len(block.findall(page)) != 1:
        raise SystemExit(f"The page has no place for {name}, or several: write <!-- {name} --> and <!-- /{name} -->.")
    return block.sub(lambda match: f"{match[1]}{text.rstrip()}\n{match[2]}", page)


def engine_tables(report: Report, day: str) -> str:
    """The report as Markdown, with the day it was made."""
    return _tables(head(report), (figures(report), shares(report)), day)


def handoff_tables(report: handoff_report.HandoffReport, day: str) -> str:
    """The same of hand-offs."""
    cells = (handoff_report.rates(report), handoff_report.overlaps(report))
    return _tables(handoff_report.head(report), cells, day)


def _tables(said: Sequence[str], cells: Sequence[Cells], day: str) -> str:
    lines = [f"Measured on {day}.", "", *(f"- {line}" for line in said)]
    for header, rows in cells:
        marks = ["---", *("---:" for _ in header[1:])]
        lines += ["", *(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))]
    return "\n".join(lines)


def measure_handoff(page: str, day: str) -> str:
    for name, flags in HANDOFFS.items():
        if flags and (why := obstacle(("ip", "tc"))):
            print(f"handoff  {' '.join(flags)}: skipped, its table stays as it is: {why}", file=sys.stderr)
            continue
        command = [sys.executable, "-m", "headrace.cli", "bench", "handoff", "--json", *flags]
        print(f"handoff  {' '.join(command[1:])}", file=sys.stderr)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        page = put(page, name, handoff_tables(handoff_report.from_json(json.loads(done.stdout)), day))
    return page


def measure_engine(page: str, day: str) -> str:
    for name, flags in ENGINES.items():
        command = [sys.executable, "-m", "headrace.cli", "bench", "engine", "--json", *flags]
        print(f"engine   {name}: {' '.join(command[1:])}", file=sys.stderr)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        page = put(page, f"engine {name}", engine_tables(from_json(json.loads(done.stdout)), day))
    return page


def measure_goal(page: str, name: str, day: str, machine: str) -> str:
    """The page with the table that the script of that name beside this one prints. A goal missed is in the table, and
    no reason to leave it out."""
    script = HERE / f"{name}.py"
    print(f"{name:<8} {script.relative_to(ROOT)}", file=sys.stderr)
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in {0, MISSED} or not done.stdout:
        raise SystemExit(f"{script.relative_to(ROOT)} brought no table; what it said stands above.")
    return put(page, name, dated_table(done.stdout, day, machine))


def dated_table(table: str, day: str, machine: str) -> str:
    return f"Measured on {day}, on {machine}.\n\n{table}"


def measure_peers(kit: Path, peers: Path, servers: str, rounds: int, machine: str) -> None:
    """Writes the page after each server, so that what was measured stays. servers: names between commas, or "" for all
    that a goal asks for."""
    wanted = {name: each for name, each in asked(GOALS).items() if not servers or name in servers.split(",")}
    COMPARED.parent.mkdir(parents=True, exist_ok=True)
    for report in compare(kit, peers, wanted, rounds, into=COMPARED, machine=machine):
        PAGE.write_text(peers_tables(PAGE.read_text(), report, (kit / "peers.toml").read_text()))


def peers_tables(page: str, report: dict[str, Any], kit: str) -> str:
    """The page with the peers' figures and the goals out of their report. kit: its peers.toml."""
    said = f"Measured on {report['date']}, on {report['machine']}; load before {report['load_average_before']:.1f}."
    page = put(page, "peers", f"{said}\n\n{peers_table(report, kit)}")
    return put(page, "goals", goals_table(GOALS, report["results"]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/performance.md.")
    parser.add_argument("--rounds", type=int, default=3, help="of the peers' part; the tables have medians")
    parser.add_argument(
        "--only", choices=("engine", "memory", "handoff", "cancel", "peers"), help="leave the other parts as they are"
    )
    parser.add_argument("--servers", default="", help="of the peers' part: only these, names between commas")
    parser.add_argument("--more", action="store_true", help="more rounds for the peers' last report, not a new one")
    wanted = parser.parse_args()
    machine = this_machine()
    today = date.today().isoformat()
    if wanted.only in {None, "engine"}:
        PAGE.write_text(measure_engine(PAGE.read_text(), today))
    if wanted.only in {None, "memory"}:
        PAGE.write_text(measure_goal(PAGE.read_text(), "memory", today, machine.words))
    if wanted.only in {None, "handoff"}:
        PAGE.write_text(measure_handoff(PAGE.read_text(), today))
    if wanted.only in {None, "cancel"}:
        PAGE.write_text(measure_goal(PAGE.read_text(), "cancel", today, machine.words))
    if wanted.only in {"engine", "memory", "handoff", "cancel"}:
        return 0
    kit, peers = os.environ.get("PEERS_KIT"), os.environ.get("PEERS")
    if not kit or not peers:
        print("peers    skipped: PEERS_KIT and PEERS do not say where the kit and its servers are", file=sys.stderr)
        return 0
    if unknown := set(filter(None, wanted.servers.split(","))) - set(asked(GOALS)):
        raise SystemExit(f"No goal asks for {', '.join(sorted(unknown))}: choose of {', '.join(asked(GOALS))}.")
    if not wanted.more:
        COMPARED.unlink(missing_ok=True)
    measure_peers(Path(kit).resolve(), Path(peers).resolve(), wanted.servers, wanted.rounds, machine.words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
