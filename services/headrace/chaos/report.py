"""The outcome as a table in Markdown, put into its place on a page."""

import os
import time
from pathlib import Path

from headrace.chaos.page import Place, table_line
from headrace.chaos.table import Outcome, figures, groups, titles

BEGIN, END = "<!-- chaos table: written by `make chaos` -->", "<!-- end of chaos table -->"
PLACE = Place(BEGIN, END)


def require_place(page: Path) -> None:
    """Raises StartupError if the page is not there or has no place for the table."""
    PLACE.require(page)


def write_report(outcome: Outcome, page: Path) -> None:
    """Into the place that `require_place` asks for."""
    PLACE.fill(page, markdown(outcome))


def markdown(outcome: Outcome) -> str:
    requests = sum(sum(row.states.values()) for row in outcome.rows)
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores: {len(outcome.rows)} cases, "
        f"{requests} requests, {outcome.seconds / 60:.0f} minutes.",
        "",
        table_line(titles()),
        table_line(["---", "---", *["---:"] * (len(titles()) - 2)]),
    ]
    lines += [table_line([*group, *figures(rows)]) for group, rows in groups(outcome.rows)]
    lines.append(table_line(["**all**", "", *figures(outcome.rows)]))
    if outcome.left_out:
        lines += ["", outcome.left_out]
    return "\n".join(lines)
