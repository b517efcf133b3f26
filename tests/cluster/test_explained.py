"""What `headrace explain` tells of a request that real processes served: its parts are its time."""

import json
import subprocess
import sys
import time
import uuid

import httpx
import pytest
from fixtures.cluster import Cluster
from test_faults import ANSWER_WITHIN_S, body

TOLERATED_MS = 5.0
STAGES = ["prepare", "queue", "route", "grant", "prefill", "commit", "first_decode", "decode"]

pytestmark = pytest.mark.parametrize("link", ["tcp"], indirect=True)


def asked(cluster: Cluster, words: int) -> tuple[str, float, float]:
    """The request's id, and what its caller waited for the first text and for all of it, in milliseconds."""
    request, began, first = uuid.uuid4().hex, time.monotonic(), 0.0
    headers = {"x-request-id": request}
    with (
        httpx.Client(base_url=cluster.url, timeout=ANSWER_WITHIN_S) as client,
        client.stream("POST", "/v1/completions", json=body(words, words=words), headers=headers) as response,
    ):
        for _ in response.iter_lines():
            first = first or time.monotonic() - began
    return request, first * 1000, (time.monotonic() - began) * 1000


@pytest.mark.parametrize("words", [20, 400])
def test_parts_are_the_time_and_both_ends_tell_of_the_pages(pair: Cluster, words: int) -> None:
    request, first_ms, total_ms = asked(pair, words)
    told = pair.get(f"/v1/requests/{request}/explain")
    # 1. The parts are the router's time, which is within the caller's.
    assert [part["stage"] for part in told["waterfall"]] == STAGES
    assert {part["attempt"] for part in told["waterfall"]} == {1}
    parts = {part["stage"]: part["seconds"] * 1000 for part in told["waterfall"]}
    to_first = sum(parts[stage] for stage in STAGES[:5])
    assert abs(to_first - told["actual_ttft_ms"]) < TOLERATED_MS
    assert to_first < first_ms
    assert sum(parts.values()) < total_ms
    # 2. What one worker sent the other took, and each saw some of its time hidden, or none.
    notes = {note["role"]: note for note in told["notes"]}
    assert {role: note["worker"]["worker"] for role, note in notes.items()} == {
        "prefill": "prefill-0",
        "decode": "decode-0",
    }
    assert notes["prefill"]["payload_bytes"] == notes["decode"]["payload_bytes"] > 0
    assert notes["prefill"]["messages"] == notes["decode"]["messages"] > 1
    for note in notes.values():
        assert 0 <= note["exposed_s"] <= note["seconds"]
        assert 0 <= note["overlap_share"] <= 1
    # 3. The receiver waits from its ticket on, the sender from its first pages.
    assert notes["decode"]["seconds"] > notes["prefill"]["exposed_s"]


def test_the_command_shows_parts_and_pages(pair: Cluster) -> None:
    request, _, _ = asked(pair, 30)
    command = [sys.executable, "-m", "headrace.cli", "explain", request, f"--url={pair.url}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    rows = [line.split() for line in shown.splitlines() if line]
    # A part of no time has no bar.
    barred = [row[0] for row in rows if "█" in row[-1]]
    assert barred == [stage for stage in STAGES if stage in barred]
    assert {"prefill", "decode"} <= set(barred)
    assert [row[0] for row in rows if row[0] in STAGES and row[1][0].isdigit()] == STAGES
    assert [row[2] for row in rows if row[:2] in (["sent", "by"], ["taken", "by"])] in (
        ["prefill-0", "decode-0"],
        ["decode-0", "prefill-0"],
    )
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert json.loads(as_json) == pair.get(f"/v1/requests/{request}/explain")
