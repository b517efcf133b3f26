"""The fault matrix on real processes: the small part with every value of every axis, by `headrace chaos`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.chaos.cells import ci_subset
from headrace.testbed.namespaces import obstacle

ALL_WITHIN_S = 300
FEW_WITHIN_S = 120
STOP_WITHIN_S = 30.0
CLEAN = {"wrong": 0, "leaks": 0, "endings": 0, "hung": 0, "died": 0, "wordless": 0, "missed": 0}


@pytest.mark.timeout(ALL_WITHIN_S + STOP_WITHIN_S)
@pytest.mark.skipif(bool(obstacle()), reason=f"partitions cannot be made: {obstacle()}")
def test_no_fault_at_any_phase_costs_a_token_a_page_or_an_ending(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, "--subset=ci", "--network=namespaces", within_s=ALL_WITHIN_S)
    assert [row["case"] for row in outcome["rows"]] == [cell.id for cell in ci_subset()]
    assert outcome["skipped"] == []


@pytest.mark.timeout(FEW_WITHIN_S + STOP_WITHIN_S)
def test_without_namespaces_all_but_partitions_is_played(tmp_path: Path) -> None:
    some = ("--target=decode", "--phase=mid-decode", "--link=tcp", "--seed=1", "--fault=kill,partition")
    outcome = chaos(tmp_path, *some, "--network=host", within_s=FEW_WITHIN_S)
    assert [row["case"] for row in outcome["rows"]] == ["decode.kill.mid-decode.tcp.1"]
    assert outcome["skipped"] == ["decode.partition.mid-decode.tcp.1"]
    assert "network" in outcome["why_skipped"]


def chaos(directory: Path, *arguments: str, within_s: float) -> dict[str, Any]:
    """Run `headrace chaos`, which must find nothing. It takes its cluster away when it is asked to stop."""
    command = [sys.executable, "-m", "headrace.cli", "chaos", "--json", f"--logs={directory}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=STOP_WITHIN_S)
            rows = (directory / "rows.jsonl").read_text() if (directory / "rows.jsonl").exists() else "no case was over"
            pytest.fail(f"not done after {within_s} s:\n{rows}\n{err[-4000:]}")
    assert process.returncode in {0, 1}, err[-4000:]
    outcome: dict[str, Any] = json.loads(out)
    found = [(row["case"], row["complaints"]) for row in outcome["rows"] if row["counts"] != CLEAN]
    assert (outcome["counts"], found, outcome["hung_at_the_end"]) == (CLEAN, [], [])
    assert process.returncode == 0
    assert all(row["victim"] for row in outcome["rows"])
    assert all(sum(row["requests"].values()) >= 6 for row in outcome["rows"])
    return outcome
