"""The report of `headrace bench handoff`: shares from seconds, tables, and JSON that brings all of it back."""

import json
from dataclasses import replace

import pytest
from bench.performance import handoff_tables
from rich.console import Console

from headrace.bench.handoff_rates import Rates
from headrace.bench.handoff_report import (
    HandoffReport,
    LinkRow,
    Overlap,
    Prompts,
    as_json,
    from_json,
    head,
    overlaps,
    print_report,
    rates,
)
from headrace.bench.machine import Machine

MACHINE = Machine("a processor", ("AVX2",), 2, 24.0, 0.5)
OVERLAP = Overlap(
    streamed=Prompts((4.0, 5.0, 4.5), (0.004, 0.012, 0.005)), withheld=Prompts((4.0, 4.1, 4.2), (0.05, 0.04, 0.06))
)
ROWS = (
    LinkRow("tcp", (2e9, 1e9, 3e9), (1e9, 0.9e9, 1.2e9), 0.5, OVERLAP),
    LinkRow("loopback", (8e9,), (2e9,), 0.25, None),
)
REPORT = HandoffReport("m", MACHINE, 0.0, 368640, 4, 58982400, 2048, ROWS)


def test_the_share_is_that_of_a_round_and_not_of_two_medians() -> None:
    """A machine that gets slower in the midst of a run slows both of a round."""
    assert Rates((2e9, 1e9, 4e9), (1e9, 0.9e9, 1.2e9)).share == 0.5


def test_what_is_hidden_is_measured_against_a_transfer_that_nothing_hides() -> None:
    assert OVERLAP.transfer_s == 0.05
    assert OVERLAP.exposed_s == 0.005
    assert OVERLAP.hidden == pytest.approx(0.9)
    assert OVERLAP.saved_s == pytest.approx(0.045)


def test_all_links_stand_side_by_side() -> None:
    _, rows = rates(REPORT)
    assert rows == [("tcp", "2000", "1000", "0.50"), ("loopback", "8000", "2000", "0.25")]
    _, rows = overlaps(REPORT)
    assert rows == [("tcp", "4.50", "50.0", "5.00", "0.90", "45.0")]


def test_json_brings_everything_back() -> None:
    data = json.loads(json.dumps(as_json(REPORT)))
    assert data["rows"][0]["hidden"] == pytest.approx(0.9)
    assert data["rows"][0]["saved_s"] == pytest.approx(0.045)
    read = from_json(data)
    assert as_json(read) == as_json(REPORT)
    assert tuple(read.rows) == ROWS


def test_the_page_gets_both_tables() -> None:
    lines = handoff_tables(REPORT, "2026-11-30").splitlines()
    assert lines[0] == "Measured on 2026-11-30."
    assert "- Machine: 2 cores of a processor (AVX2), 24 GiB of memory; over its loopback interface; load 0.5." in lines
    assert "| tcp | 2000 | 1000 | 0.50 |" in lines
    assert "| tcp | 4.50 | 50.0 | 5.00 | 0.90 | 45.0 |" in lines


def test_the_network_between_the_processes_is_named() -> None:
    assert "over a network of 10 Gbit/s between namespaces; load 0.5." in head(replace(REPORT, gbits=10.0))[1]


def test_within_a_host_it_says_why_the_bare_link_is_far_and_how_a_network_is_measured() -> None:
    said = "--gbits 10 shows a network's rate."
    assert any(line.endswith(said) for line in head(REPORT))
    assert not any(line.endswith(said) for line in head(replace(REPORT, gbits=10.0)))


def test_people_get_tables_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, Console(width=80))
    out = capsys.readouterr().out
    assert "transfers of 59 MB, in units of 4 blocks (1.47 MB)" in " ".join(out.split())
    assert "over its loopback interface; load 0.5." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
