"""A place for a table on a page of Markdown: between two comments. Nothing else of that page is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import StartupError


@dataclass(frozen=True, slots=True)
class Place:
    """Between the comments `begin` and `end`."""

    begin: str
    end: str

    def require(self, page: Path) -> None:
        """Raises StartupError if the page is not there or has no such place."""
        if not page.is_file() or not all(self._parts(page)[1::2]):
            raise StartupError(
                f"{page} has no place for the table.", remedy=f"Put {self.begin} and {self.end} into it."
            )

    def fill(self, page: Path, text: str) -> None:
        """Into the place that `require` asks for, instead of what was there."""
        before, begin, _, end, after = self._parts(page)
        page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")

    def _parts(self, page: Path) -> tuple[str, str, str, str, str]:
        """What stands before the place, its beginning, what is in it, its end, and what comes after."""
        before, begin, rest = page.read_text(encoding="utf-8").partition(self.begin)
        within, end, after = rest.partition(self.end)
        return before, begin, within, end, after


def table_line(cells: Sequence[str]) -> str:
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"
