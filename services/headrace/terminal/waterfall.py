"""A request's time as a terminal shows it: a bar for each part, and a line for each end of a transfer."""

from typing import Any

from rich.table import Table

_WIDTH = 40


def parts(waterfall: list[dict[str, Any]]) -> Table:
    """Each part where it lies in the whole, in milliseconds."""
    whole = sum(part["seconds"] for part in waterfall)
    table = Table("", "attempt", "ms", "", title=f"where {whole * 1000:.1f} ms went")
    table.box, table.pad_edge, table.title_justify = None, False, "left"
    table.columns[2].justify = "right"
    began = 0.0
    for part in waterfall:
        took = f"{part['seconds'] * 1000:.1f}"
        bar = _bar(began, began + part["seconds"], whole) if float(took) else ""
        table.add_row(part["stage"], str(part["attempt"]), took, bar)
        began += part["seconds"]
    return table


def transfers(notes: list[dict[str, Any]]) -> Table:
    """What each end saw of the pages that moved, by its own clock: what one waited for, the other may not have."""
    table = Table(
        "", "attempt", "bytes", "messages", "ms", "waited ms", "hidden", title="pages moved, as each end saw it"
    )
    table.caption = "a sender waits once its last page is computed, a receiver once it has the first token"
    table.box, table.pad_edge, table.title_justify, table.caption_justify = None, False, "left", "left"
    for column in table.columns[2:]:
        column.justify = "right"
    for note in notes:
        table.add_row(
            f"{'sent by' if note['role'] == 'prefill' else 'taken by'} {note['worker']['worker']}",
            str(note["attempt"]),
            f"{note['payload_bytes']:,}",
            str(note["messages"]),
            f"{note['seconds'] * 1000:.1f}",
            f"{note['exposed_s'] * 1000:.1f}",
            f"{note['overlap_share']:.0%}",
        )
    return table


def _bar(begin: float, end: float, whole: float) -> str:
    """What is shown of `whole`, which is above 0: at least a sliver."""
    left = min(_WIDTH - 1, int(begin / whole * _WIDTH))
    right = max(left + 1, round(end / whole * _WIDTH))
    return " " * left + "█" * (right - left)
