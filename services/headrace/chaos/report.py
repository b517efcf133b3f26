"""The outcome as a table in Markdown, put into a page between two comments.

It writes nothing else of that page.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.chaos.table import Outcome, figures, groups, titles
from headrace.core.errors import StartupError

BEGIN, END = "<!-- chaos table: written by `make chaos` -->", "<!-- end of chaos table -->"


def require_place(page: Path) -> None:
    """Raises StartupError if the page is not there or has no place for the table."""
    if not page.is_file() or not all(_parts(page)[1::2]):
        raise StartupError(f"{page} has no place for the table.", remedy=f"Put {BEGIN} and {END} into it.")


def write_report(outcome: Outcome, page: Path) -> None:
    """Into the place that `require_place` asks for."""
    before, begin, _, end, after = _parts(page)
    page.write_text(f"{before}{begin}\n\n{markdown(outcome)}\n\n{end}{after}", encoding="utf-8")


def _parts(page: Path) -> tuple[str, str, str, str, str]:
    """What stands before the place, its beginning, what is in it, its end, and what comes after."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    within, end, after = rest.partition(END)
    return before, begin, within, end, after


def markdown(outcome: Outcome) -> str:
    requests = sum(sum(row.states.values()) for row in outcome.rows)
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores: {len(outcome.rows)} cases, "
        f"{requests} requests, {outcome.seconds / 60:.0f} minutes.",
        "",
        _line(titles()),
        _line(["---", "---", *["---:"] * (len(titles()) - 2)]),
    ]
    lines += [_line([*group, *figures(rows)]) for group, rows in groups(outcome.rows)]
    lines.append(_line(["**all**", "", *figures(outcome.rows)]))
    if outcome.skipped:
        lines += ["", f"{len(outcome.skipped)} cases were left out: {outcome.why_skipped}."]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
