"""The outcome: as a table in its place on a page, as JSON, and what makes it clean."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from headrace.chaos.case import Row
from headrace.chaos.cells import Cell, Fault, Moment, Target
from headrace.chaos.report import BEGIN, END, markdown, require_place, write_report
from headrace.chaos.table import Outcome, as_json, print_outcome
from headrace.chaos.verdict import Counts
from headrace.core.errors import StartupError


def row(target: Target, fault: Fault, counts: Counts = Counts(), complaint: str = "") -> Row:  # noqa: B008 - frozen
    cell = Cell(target, fault, Moment.MID_DECODE, "tcp", 0)
    said = (complaint,) if complaint else ()
    return Row(cell, counts, {"finished": 7, "failed": 1}, said, "decode-0", seconds=1.0, rest_s=0.1)


CLEAN = Outcome([row(Target.DECODE, Fault.KILL), row(Target.REDIS, Fault.KILL)], ["x"], "not root", (), 60.0)
LEAK = Outcome([row(Target.DECODE, Fault.KILL, Counts(leaks=1), "decode-1 has 3 of 4 pages free")], (), "", (), 1.0)


def test_an_outcome_is_clean_only_if_nothing_was_found_and_nothing_hung() -> None:
    assert CLEAN.clean
    assert not LEAK.clean
    assert not Outcome([], (), "", ("redis",), 1.0).clean


def test_json_has_a_row_a_case_and_the_sums() -> None:
    told = as_json(LEAK)
    assert (told["cases"], told["requests"], told["counts"]["leaks"]) == (1, 8, 1)
    assert told["rows"][0]["case"] == "decode.kill.mid-decode.tcp.0"
    assert told["rows"][0]["complaints"] == ["decode-1 has 3 of 4 pages free"]


def test_people_see_the_table_and_what_was_found() -> None:
    shown = io.StringIO()
    print_outcome(LEAK, Console(file=shown))
    assert "decode  kill" in shown.getvalue()
    assert "decode-1 has 3 of 4 pages free" in shown.getvalue()


@pytest.mark.parametrize(
    ("skipped", "sentence"), [("x", "1 case was left out: w."), ("xy", "2 cases were left out: w.")]
)
def test_what_was_left_out_is_told_in_words_of_its_number(skipped: str, sentence: str) -> None:
    shown = io.StringIO()
    outcome = Outcome(CLEAN.rows, list(skipped), "w", (), 1.0)
    print_outcome(outcome, Console(file=shown))
    assert sentence in shown.getvalue()
    assert sentence in markdown(outcome)


def test_the_table_takes_its_place_on_the_page_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n")
    for _ in range(2):
        require_place(page)
        write_report(CLEAN, page)
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nAfter\n")
    assert "old" not in text
    assert "| decode | kill | 1 | 7 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| **all** |  | 2 | 14 | 2 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "1 case was left out: not root." in text


@pytest.mark.parametrize("text", ["nothing", f"{END} before {BEGIN}"])
def test_a_page_without_a_place_is_refused(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(StartupError, match="no place"):
        require_place(page)
    page.write_text(text)
    with pytest.raises(StartupError, match="no place"):
        require_place(page)


def test_the_page_of_the_project_has_its_place() -> None:
    require_place(Path(__file__).resolve().parents[3] / "docs" / "chaos.md")
