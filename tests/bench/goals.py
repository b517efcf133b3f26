"""The goals of goals.toml against a report of the peers' kit: what was reached, and whether that is enough."""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Reports as the kit's compare.py writes them: of each server, what each round brought.
Rounds = Sequence[Mapping[str, Any]]
Results = Mapping[str, Rounds]

# Ends of the names of metrics of which more is better.
_MORE_IS_BETTER = ("tok_s", "request_s", "share", "cached_tokens")
_PHASES = ("alone", "with_long")


@dataclass(frozen=True, slots=True)
class Goal:
    """See goals.toml. One of times, least and most is set."""

    name: str
    workload: str
    metric: str
    server: str
    against: tuple[str, ...] = ()
    times: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """ours, theirs: medians of the rounds; None where a round brought no such figure. peer: whose `theirs` is.

    ratio: how many times better ours is; None without a peer. spoiled: of one of the servers something failed or fell
    short: some of its requests, or the server itself.
    """

    ours: float | None
    theirs: float | None = None
    peer: str = ""
    ratio: float | None = None
    spoiled: bool = False


def read_goals(path: Path) -> tuple[Goal, ...]:
    goals = tomllib.loads(path.read_text())["goal"]
    return tuple(Goal(**{**goal, "against": tuple(goal.get("against", ()))}) for goal in goals)


def reach(goal: Goal, results: Results) -> Reached:
    more = goal.metric.endswith(_MORE_IS_BETTER)
    ours = median(results.get(goal.server, ()), goal.workload, goal.metric)
    found = {peer: median(results.get(peer, ()), goal.workload, goal.metric) for peer in goal.against}
    figures = {peer: figure for peer, figure in found.items() if figure is not None}
    spoiled = any(_spoiled(results.get(name, ()), goal.workload) for name in (goal.server, *goal.against))
    # Without one of them nobody knows whether it was the better one.
    if not figures or len(figures) < len(goal.against):
        return Reached(ours, spoiled=spoiled)
    peer = (max if more else min)(figures, key=lambda name: figures[name])
    theirs = figures[peer]
    over, under = (ours, theirs) if more else (theirs, ours)
    return Reached(ours, theirs, peer, over / under if over is not None and under else None, spoiled)


def met(goal: Goal, reached: Reached) -> bool | None:
    """None where it cannot be said."""
    if reached.spoiled or reached.ours is None:
        return None
    if goal.times is not None:
        return None if reached.ratio is None else reached.ratio >= goal.times
    return (goal.least is None or reached.ours >= goal.least) and (goal.most is None or reached.ours <= goal.most)


def goals_table(goals: Sequence[Goal], results: Results) -> str:
    """As Markdown."""
    lines = ["| goal | Headrace | peer | times better | wanted | met |", "|---|---:|---:|---:|---:|---|"]
    for goal in goals:
        reached = reach(goal, results)
        peer = f"{shown(reached.theirs)} ({reached.peer})" if reached.peer else "-"
        verdict = {True: "yes", False: "**no**", None: "failed" if reached.spoiled else "not measured"}
        cells = goal.name, shown(reached.ours), peer, _ratio(reached.ratio), _wanted(goal), verdict[met(goal, reached)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def median(rounds: Rounds, workload: str, path: str) -> float | None:
    """Of one figure over the rounds, named by a dotted path; None unless every round has it."""
    found = [_figure(node, workload, path) for node in rounds]
    figures = [figure for figure in found if figure is not None]
    return statistics.median(figures) if figures and len(figures) == len(found) else None


def _figure(node: Mapping[str, Any], workload: str, path: str) -> float | None:
    figure: Any = node.get("workloads", {}).get(workload) if workload else node
    for key in path.split("."):
        figure = figure.get(key) if isinstance(figure, Mapping) else None
    return None if figure is None else float(figure)


def _spoiled(rounds: Rounds, workload: str) -> bool:
    """A round whose server did not live says so itself; what failed of a workload stands in that one's report."""
    reports = [*rounds, *(node.get("workloads", {}).get(workload, {}) for node in rounds)]
    phases = [phase for report in reports for phase in (report, *(report.get(name, {}) for name in _PHASES))]
    return any(phase.get("failed") or phase.get("errors") or phase.get("short_outputs") for phase in phases)


def _wanted(goal: Goal) -> str:
    if goal.times is not None:
        return f"{goal.times:g} x"
    return f"≥ {goal.least:g}" if goal.least is not None else f"≤ {goal.most:g}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"
