"""What a soak came to: a line a lap, a table of processes for people and for a page, and JSON for programs."""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.chaos.page import Place, table_line
from headrace.chaos.soak.flat import Series, ends, risen, series, unjudged
from headrace.chaos.soak.lap import LapRow
from headrace.chaos.soak.sample import COUNTS, HELD, MEMORY
from headrace.chaos.verdict import Counts, total

PLACE = Place("<!-- soak table: written by `make soak` -->", "<!-- end of soak table -->")

_MIB = 2**20
_LEAST_WIDTH = 130
_MOST_SHOWN = 40
_STATES = ("finished", "left", "failed", "cut")
_MEASURES = (MEMORY, *COUNTS, *HELD)


@dataclass(frozen=True, slots=True)
class LinkOutcome:
    """Of the cluster with that link. hung: processes that did not stop at the end."""

    link: str
    rows: Sequence[LapRow]
    hung: Sequence[str]
    seconds: float

    @property
    def series(self) -> tuple[Series, ...]:
        return series([row.samples for row in self.rows])

    @property
    def risen(self) -> tuple[str, ...]:
        return risen(self.series, sum(self.states.values()))

    @property
    def unjudged(self) -> str:
        """What there were too few laps or requests to judge, as a sentence; "" if nothing."""
        return unjudged(len(self.rows), sum(self.states.values()))

    @property
    def counts(self) -> Counts:
        return total([*(row.counts for row in self.rows), Counts(hung=len(self.hung))])

    @property
    def states(self) -> Mapping[str, int]:
        return sum((Counter(row.states) for row in self.rows), Counter())

    @property
    def strokes(self) -> Mapping[str, int]:
        return Counter(stroke.deed.value for row in self.rows for stroke in row.lap.strokes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """remains: what is left on the machine. why_whole: why nobody could be parted; "" if they could."""

    seed: int
    links: Sequence[LinkOutcome]
    remains: Sequence[str]
    why_whole: str
    seconds: float

    @property
    def clean(self) -> bool:
        return not self.remains and all(each.counts.clean and not each.risen for each in self.links)

    @property
    def whole(self) -> str:
        """That nobody was parted and why, as a sentence; "" if somebody could be."""
        return f"Nobody was parted: {self.why_whole}." if self.why_whole else ""

    @property
    def requests(self) -> int:
        return sum(sum(each.states.values()) for each in self.links)


def lap_line(row: LapRow, laps: int) -> str:
    strokes = ", ".join(stroke.words for stroke in row.lap.strokes)
    found = f"; {len(row.complaints)} complaints" if row.complaints else ""
    return (
        f"lap {row.lap.number}/{laps}: {_told(row.states)}; {strokes}; quiet after {row.rest_s:.1f} of "
        f"{row.seconds:.1f} s{found}"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "requests": outcome.requests,
        "seconds": round(outcome.seconds, 1),
        "clean": outcome.clean,
        "why_nobody_parted": outcome.why_whole,
        "remains": list(outcome.remains),
        "links": [_link_json(each) for each in outcome.links],
    }


def _link_json(each: LinkOutcome) -> dict[str, Any]:
    return {
        "link": each.link,
        "requests": dict(each.states),
        "strokes": dict(each.strokes),
        "counts": asdict(each.counts),
        "risen": list(each.risen),
        "unjudged": each.unjudged,
        "hung_at_the_end": list(each.hung),
        "series": [{**asdict(one), "values": list(one.values)} for one in each.series],
        "laps": [_lap_json(row) for row in each.rows],
    }


def _lap_json(row: LapRow) -> dict[str, Any]:
    return {
        "lap": row.lap.number,
        "requests": dict(row.states),
        "errors": dict(row.errors),
        "strokes": [stroke.words for stroke in row.lap.strokes],
        "counts": asdict(row.counts),
        "complaints": row.complaints,
        "seconds": round(row.seconds, 2),
        "rest_s": round(row.rest_s, 2),
    }


def print_outcome(outcome: Outcome, console: Console) -> None:
    console.width = max(console.width, _LEAST_WIDTH)
    for each in outcome.links:
        table = Table(box=None)
        for place, title in enumerate(_titles(each)):
            table.add_column(title, no_wrap=True, justify="right" if place else "left")
        for cells in _figures(each):
            table.add_row(*cells)
        console.print(_summary(each), highlight=False, markup=False)
        console.print(table)
        if each.unjudged:
            console.print(each.unjudged, highlight=False, markup=False)
    found = [sentence for each in outcome.links for sentence in _found(each)] + list(outcome.remains)
    for sentence in found[:_MOST_SHOWN]:
        console.print(sentence, highlight=False, markup=False)
    if len(found) > _MOST_SHOWN:
        console.print(f"... and {len(found) - _MOST_SHOWN} more: --json has them all.")
    if outcome.whole:
        console.print(outcome.whole, highlight=False, markup=False)
    console.print(f"{outcome.requests} requests, {outcome.seconds:.0f} s, seed {outcome.seed}", highlight=False)


def markdown(outcome: Outcome, commit: str) -> str:
    """commit: of the tree that ran; "": unknown."""
    tree = f" of {commit}" if commit else ""
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}{tree}, {os.cpu_count()} cores: {outcome.requests} requests, "
        f"{outcome.seconds / 60:.0f} minutes, seed {outcome.seed}: {'flat' if outcome.clean else 'not flat'}."
    ]
    for each in outcome.links:
        titles = _titles(each)
        lines += ["", _summary(each), "", table_line(titles), table_line(["---", *["---:"] * (len(titles) - 1)])]
        lines += [table_line(cells) for cells in _figures(each)]
        lines += ["", each.unjudged] if each.unjudged else []
    found = [sentence for each in outcome.links for sentence in _found(each)] + list(outcome.remains)
    lines += ["", *(f"- {sentence}" for sentence in found)] if found else []
    if outcome.whole:
        lines += ["", outcome.whole]
    return "\n".join(lines)


def _summary(each: LinkOutcome) -> str:
    amiss = {**asdict(each.counts), "grown": len(each.risen)}
    bad = ", ".join(f"{name} {count}" for name, count in amiss.items() if count)
    return (
        f"Over {each.link}, {len(each.rows)} laps in {each.seconds / 60:.1f} minutes: {_told(each.states)}; "
        f"{', '.join(f'{deed} {count}' for deed, count in each.strokes.items())}; {bad or 'nothing amiss'}."
    )


def _found(each: LinkOutcome) -> list[str]:
    complaints = [f"lap {row.lap.number}: {sentence}" for row in each.rows for sentence in row.complaints]
    return [*each.risen, *complaints, *(f"{name} did not stop in time" for name in each.hung)]


def _told(states: Mapping[str, int]) -> str:
    return ", ".join(
        f"{states[state]} {state}" for state in (*_STATES, *sorted(set(states) - {*_STATES})) if states.get(state)
    )


def _measures(each: LinkOutcome) -> list[str]:
    """Those of which anybody has any."""
    there = {one.measure for one in each.series if any(one.values)}
    return [measure for measure in _MEASURES if measure in there]


def _titles(each: LinkOutcome) -> list[str]:
    return ["process", "lives", *("memory, MiB" if name == MEMORY else name for name in _measures(each))]


def _figures(each: LinkOutcome) -> list[list[str]]:
    """A line a process: of each measure what it is early and late."""
    found = {(one.member, one.measure): one for one in each.series}
    lines = []
    for member in dict.fromkeys(one.member for one in each.series):
        lives = next(one.lives for one in each.series if one.member == member)
        lines.append([member, str(lives), *(_early_late(found.get((member, name))) for name in _measures(each))])
    return lines


def _early_late(one: Series | None) -> str:
    if one is None:
        return ""
    early, late = ends(one)
    if one.measure == MEMORY:
        return f"{early / _MIB:.1f} → {late / _MIB:.1f}"
    return f"{early:g}" if early == late else f"{early:g} → {late:g}"
