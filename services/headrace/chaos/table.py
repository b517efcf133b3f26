"""What a run came to: a table of targets and faults for people, a row a case as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.chaos.case import Row
from headrace.chaos.cells import Fault, Target
from headrace.chaos.verdict import Counts, total

_MOST_SHOWN = 40
_LEAST_WIDTH = 110
_AXES = ("target", "fault")
_STATES = ("finished", "failed", "cut")
_COUNTS = tuple(each.name for each in fields(Counts))


@dataclass(frozen=True, slots=True)
class Outcome:
    """skipped: ids of cases that cannot be run here, with why. hung: processes that did not stop at the end."""

    rows: Sequence[Row]
    skipped: Sequence[str]
    why_skipped: str
    hung: Sequence[str]
    seconds: float

    @property
    def counts(self) -> Counts:
        return total([*(row.counts for row in self.rows), Counts(hung=len(self.hung))])

    @property
    def left_out(self) -> str:
        """How many cases were not played and why, as a sentence; "" if all were."""
        if not self.skipped:
            return ""
        count = "1 case was" if len(self.skipped) == 1 else f"{len(self.skipped)} cases were"
        return f"{count} left out: {self.why_skipped}."

    @property
    def clean(self) -> bool:
        return self.counts.clean


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "cases": len(outcome.rows),
        "requests": sum(sum(row.states.values()) for row in outcome.rows),
        "seconds": round(outcome.seconds, 1),
        "counts": asdict(outcome.counts),
        "hung_at_the_end": list(outcome.hung),
        "skipped": list(outcome.skipped),
        "why_skipped": outcome.why_skipped,
        "rows": [row_json(row) for row in outcome.rows],
    }


def row_json(row: Row) -> dict[str, Any]:
    return {
        "case": row.cell.id,
        "target": row.cell.target.value,
        "fault": row.cell.fault.value,
        "moment": row.cell.moment.value,
        "link": row.cell.link,
        "seed": row.cell.seed,
        "victim": row.victim,
        "requests": dict(row.states),
        "counts": asdict(row.counts),
        "complaints": list(row.complaints),
        "seconds": round(row.seconds, 2),
        "rest_s": round(row.rest_s, 2),
    }


def print_outcome(outcome: Outcome, console: Console) -> None:
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(_table(outcome))
    requests = sum(sum(row.states.values()) for row in outcome.rows)
    console.print(f"{len(outcome.rows)} cases, {requests} requests, {outcome.seconds:.0f} s")
    if outcome.left_out:
        console.print(outcome.left_out)
    if outcome.hung:
        console.print(f"Did not stop in time: {', '.join(outcome.hung)}.")
    bad = [row for row in outcome.rows if not row.counts.clean]
    for row in bad[:_MOST_SHOWN]:
        console.print(f"{row.cell.id} (struck {row.victim or 'nobody'})", highlight=False, markup=False)
        for complaint in row.complaints:
            console.print(f"  {complaint}", highlight=False, markup=False)
    if len(bad) > _MOST_SHOWN:
        console.print(f"... and {len(bad) - _MOST_SHOWN} more cases: --json has them all.")


def _table(outcome: Outcome) -> Table:
    table = Table(box=None)
    for place, title in enumerate(titles()):
        table.add_column(title, no_wrap=True, justify="left" if place < len(_AXES) else "right")
    for group, rows in groups(outcome.rows):
        table.add_row(*group, *figures(rows))
    table.add_section()
    table.add_row("all", "", *figures(outcome.rows))
    return table


def titles() -> list[str]:
    return [*_AXES, "cases", *_STATES, *_COUNTS]


def groups(rows: Sequence[Row]) -> list[tuple[tuple[str, str], list[Row]]]:
    """Cases by target and fault, in the order of the matrix."""
    found: dict[tuple[Target, Fault], list[Row]] = {}
    for row in rows:
        found.setdefault((row.cell.target, row.cell.fault), []).append(row)
    return [
        ((target.value, fault.value), found[target, fault])
        for target, fault in product(Target, Fault)
        if (target, fault) in found
    ]


def figures(rows: Sequence[Row]) -> list[str]:
    """What stands under all titles but the first two."""
    counts = total([row.counts for row in rows])
    states = [sum(row.states.get(state, 0) for row in rows) for state in _STATES]
    return [str(each) for each in (len(rows), *states, *(getattr(counts, name) for name in _COUNTS))]
