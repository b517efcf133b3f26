"""The report of `headrace bench handoff`: figures of each link, as JSON and as tables for people.

Owns the arithmetic from seconds to shares. It measures nothing.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.machine import Machine
from headrace.bench.report import Cells, shown

# What a hand-off should reach: of the bare link's rate, and of its time hidden behind computing. The second is for
# prompts of 2,048 tokens. A loopback link is one copy in memory, which no checked transfer can come near.
RATE_GOAL, HIDDEN_GOAL = 0.8, 0.7
_MS, _MB = 1e3, 1e6


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts whose pages were handed over. computed_s: what each took to compute. exposed_s: from then until its last
    page was verified at the receiver."""

    computed_s: tuple[float, ...]
    exposed_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """streamed: pages leave as they are computed. withheld: they leave when the whole prompt is."""

    streamed: Prompts
    withheld: Prompts

    @property
    def exposed_s(self) -> float:
        return statistics.median(self.streamed.exposed_s)

    @property
    def transfer_s(self) -> float:
        """What the whole takes when nothing hides it."""
        return statistics.median(self.withheld.exposed_s)

    @property
    def hidden(self) -> float:
        """Which part of a transfer's time passes while the prompt is computed."""
        return 1 - self.exposed_s / self.transfer_s

    @property
    def saved_s(self) -> float:
        return self.transfer_s - self.exposed_s


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link. bare, handoff: bytes of payload a second in each round; see Rates. overlap: None if not measured."""

    name: str
    bare: tuple[float, ...]
    handoff: tuple[float, ...]
    share: float
    overlap: Overlap | None


@dataclass(frozen=True, slots=True)
class HandoffReport:
    """gbits: of the network between the processes, 10^9 bits a second; 0: there was none. payload_bytes: of one
    transfer, in units of `unit_blocks` blocks of `block_bytes`. prompt: tokens, 0: none."""

    model: str
    machine: Machine
    gbits: float
    block_bytes: int
    unit_blocks: int
    payload_bytes: int
    prompt: int
    rows: Sequence[LinkRow]


def as_json(report: HandoffReport) -> dict[str, object]:
    rows = [asdict(row) | _derived(row.overlap) for row in report.rows]
    return {**asdict(report), "rows": rows}


def _derived(overlap: Overlap | None) -> dict[str, object]:
    """What a reader would compute from the samples."""
    if overlap is None:
        return {}
    return {"hidden": overlap.hidden, "saved_s": overlap.saved_s}


def from_json(data: dict[str, Any]) -> HandoffReport:
    """The inverse of `as_json`."""
    machine = Machine(**{**data["machine"], "instructions": tuple(data["machine"]["instructions"])})
    return HandoffReport(**{**data, "machine": machine, "rows": [_row(row) for row in data["rows"]]})


def _row(data: dict[str, Any]) -> LinkRow:
    overlap = data["overlap"]
    if overlap is not None:
        overlap = Overlap(*(_prompts(overlap[kind]) for kind in ("streamed", "withheld")))
    return LinkRow(data["name"], tuple(data["bare"]), tuple(data["handoff"]), data["share"], overlap)


def _prompts(data: dict[str, Any]) -> Prompts:
    return Prompts(tuple(data["computed_s"]), tuple(data["exposed_s"]))


def head(report: HandoffReport) -> list[str]:
    """What was measured and where, a sentence each."""
    unit = report.unit_blocks * report.block_bytes / _MB
    where = f"a network of {report.gbits:g} Gbit/s between namespaces" if report.gbits else "its loopback interface"
    lines = [
        f"Pages of {report.model}: transfers of {report.payload_bytes / _MB:.0f} MB, in units of {report.unit_blocks}"
        f" blocks ({shown(unit)} MB).",
        f"Machine: {report.machine.words}; over {where}; load {report.machine.load:.1f}.",
        f"Goals: {RATE_GOAL:.0%} of the bare link's rate; {HIDDEN_GOAL:.0%} of a transfer's time hidden behind"
        " computing.",
    ]
    if not report.gbits:
        lines.append(
            "Within a host the same cores carry every byte and gather, check and write it, which the bare link does"
            " not; --gbits 10 shows a network's rate."
        )
    if report.prompt:
        lines.append(
            f"Prompts of {report.prompt} tokens: ms from the last chunk's end until the last page is verified,"
            " sent after the prompt or streamed while it is computed."
        )
    return lines


def rates(report: HandoffReport) -> Cells:
    """Header and rows: what each link carries."""
    header = ("link", "bare, MB/s", "hand-off, MB/s", "of bare")
    return header, [
        (row.name, *(f"{statistics.median(each) / _MB:.0f}" for each in (row.bare, row.handoff)), f"{row.share:.2f}")
        for row in report.rows
    ]


def overlaps(report: HandoffReport) -> Cells:
    """Header and rows: what of a hand-off a prompt's reader waits for, for each link that was measured so."""
    header = ("link", "prompt, s", "sent after, ms", "streamed, ms", "hidden", "saved, ms")
    return header, [(row.name, *_cells(row.overlap)) for row in report.rows if row.overlap is not None]


def _cells(overlap: Overlap) -> tuple[str, ...]:
    times = (overlap.transfer_s, overlap.exposed_s, overlap.saved_s)
    after, streamed, saved = (shown(each * _MS) for each in times)
    return shown(statistics.median(overlap.streamed.computed_s)), after, streamed, f"{overlap.hidden:.2f}", saved


def print_report(report: HandoffReport, console: Console) -> None:
    for line in head(report):
        console.print(line, highlight=False)
    for header, rows in (rates(report), overlaps(report)):
        if not rows:
            continue
        table = Table(*header, box=None, pad_edge=False, collapse_padding=True)
        for column in table.columns[1:]:
            column.justify = "right"
        for column in table.columns:
            column.no_wrap = True
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
