"""The outcome of a soak: what makes it clean, as a line a lap, as a table in its place, as JSON."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from headrace.chaos.soak.lap import LapRow
from headrace.chaos.soak.plan import Shape, plan
from headrace.chaos.soak.sample import MEMORY, Sample
from headrace.chaos.soak.table import PLACE, LinkOutcome, Outcome, as_json, lap_line, markdown, print_outcome
from headrace.chaos.verdict import Counts

LAPS = plan(Shape(0, 900, 9, ("greedy",), partitions=True))


def outcome(leak: int = 0, remains: tuple[str, ...] = (), counts: Counts = Counts()) -> Outcome:  # noqa: B008 - frozen
    rows = [
        LapRow(
            lap,
            {"finished": 80, "left": 20},
            counts=counts,
            samples=(Sample("router-0", 7, {MEMORY: 100 * 2**20, "fds": 20 + leak * lap.number}),),
        )
        for lap in LAPS
    ]
    return Outcome(0, [LinkOutcome("tcp", rows, (), 60.0)], remains, "", 61.0)


def test_it_is_clean_only_if_nothing_was_found() -> None:
    assert outcome().clean
    assert not outcome(leak=1).clean
    assert not outcome(remains=("process 7 (python) is zombie",)).clean
    assert not outcome(counts=Counts(wrong=1)).clean


def test_a_line_tells_a_lap() -> None:
    line = lap_line(outcome().links[0].rows[0], 9)
    assert line.startswith("lap 1/9: 80 finished, 20 left; ")
    assert LAPS[0].strokes[0].words in line


def test_people_see_what_grew_and_what_is_left() -> None:
    shown = io.StringIO()
    print_outcome(outcome(leak=1, remains=("namespace x is left",)), Console(file=shown))
    assert "router-0 has more fds lap by lap: 21, 22, " in shown.getvalue()
    assert "; grown 1." in shown.getvalue()
    assert "namespace x is left" in shown.getvalue()
    assert "24.5 → 28.5" in shown.getvalue()


def test_the_page_says_of_which_tree_it_tells_and_of_every_process() -> None:
    text = markdown(outcome(), "abc123")
    assert " of abc123, " in text
    assert "900 requests" in text
    assert text.splitlines()[0].endswith(": flat.")
    assert "| router-0 | 1 | 100.0 → 100.0 | 20 |" in text
    assert "not flat." in markdown(outcome(leak=1), "")


def test_a_soak_of_few_laps_says_that_it_judges_little() -> None:
    few = Outcome(0, [LinkOutcome("tcp", outcome().links[0].rows[:3], (), 60.0)], (), "", 61.0)
    sentence = "So few laps (3) do not show whether anything grows"
    shown = io.StringIO()
    print_outcome(few, Console(file=shown))
    assert sentence in shown.getvalue()
    assert sentence in markdown(few, "")
    assert as_json(few)["links"][0]["unjudged"].startswith(sentence)


def test_whoever_reads_of_a_soak_learns_that_nobody_was_parted() -> None:
    whole = replace(outcome(), why_whole="ip is not installed")
    sentence = "Nobody was parted: ip is not installed."
    shown = io.StringIO()
    print_outcome(whole, Console(file=shown))
    assert sentence in shown.getvalue()
    assert sentence in markdown(whole, "")
    assert as_json(whole)["why_nobody_parted"] == "ip is not installed"


def test_json_has_every_sample_and_the_sums() -> None:
    told = as_json(outcome(leak=1))
    assert (told["requests"], told["clean"]) == (900, False)
    (link,) = told["links"]
    fds = next(each for each in link["series"] if each["measure"] == "fds")
    assert fds["values"] == list(range(21, 30))
    assert len(link["risen"]) == 1
    assert sum(link["strokes"].values()) == sum(len(lap.strokes) for lap in LAPS)


def test_the_page_of_the_project_has_its_place() -> None:
    PLACE.require(Path(__file__).resolve().parents[3] / "docs" / "soak.md")
