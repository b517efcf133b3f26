"""A short soak on real processes, by `headrace soak`: cancels, deaths and drains, and nothing is left of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WITHIN_S = 150
STOP_WITHIN_S = 30.0
REQUESTS, LAPS = 160, 4


@pytest.mark.timeout(WITHIN_S + STOP_WITHIN_S)
def test_nothing_is_left_of_cancels_deaths_and_drains(tmp_path: Path) -> None:
    few = (f"--requests={REQUESTS}", f"--laps={LAPS}", "--clients=16", "--link=tcp", f"--logs={tmp_path}")
    command = [sys.executable, "-m", "headrace.cli", "soak", "--json", *few]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            _, err = process.communicate(timeout=STOP_WITHIN_S)
            pytest.fail(f"not done after {WITHIN_S} s:\n{err[-4000:]}")
    assert process.returncode in {0, 1}, err[-4000:]
    outcome = json.loads(out)
    (link,) = outcome["links"]
    complaints = [sentence for lap in link["laps"] for sentence in lap["complaints"]]
    assert (link["risen"], complaints, link["hung_at_the_end"], outcome["remains"]) == ([], [], [], [])
    assert (outcome["clean"], process.returncode) == (True, 0)
    assert not any(link["counts"].values())
    assert outcome["requests"] == REQUESTS
    told = {(one["member"], one["measure"]) for one in link["series"]}
    assert {("redis", "keys"), ("gateway", "tasks"), ("router-1", "fds"), ("decode-0", "slabs")} <= told
    assert len(link["laps"]) == LAPS
    assert link["requests"]["finished"] > REQUESTS / 2
    assert link["requests"]["left"] > 0
    assert {"kill", "drain", "damage", "freeze"} <= link["strokes"].keys()
