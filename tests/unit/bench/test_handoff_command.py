"""`headrace bench handoff` as a user runs it, on a tiny model: two processes, figures that are possible, refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.random_gguf import CONTEXT, write_random

from headrace.cli import main
from headrace.core.ticket import UNIT_BLOCKS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("model") / "random.gguf")


def test_every_link_is_held_against_itself(model: Path) -> None:
    flags = ("--links", "ucx,tcp,loopback", "--blocks", "10", "--rounds", "2", "--prompt", "200", "--prompts", "1")
    command = [sys.executable, "-m", "headrace.cli", "bench", "handoff", "--model", str(model), "--json", *flags]
    done = subprocess.run(
        [*command, "--threads", "1", "--cache-dir", str(model.parent)], capture_output=True, timeout=110, check=True
    )
    report = json.loads(done.stdout)
    assert (report["unit_blocks"], report["payload_bytes"]) == (UNIT_BLOCKS, 10 * report["block_bytes"])
    assert [row["name"] for row in report["rows"]] == ["ucx", "tcp", "loopback"]
    for row in report["rows"]:
        assert len(row["bare"]) == len(row["handoff"]) == 2
        assert min(*row["bare"], *row["handoff"], row["share"]) > 0
    for row in report["rows"][:2]:
        for kind in ("streamed", "withheld"):
            assert min(*row["overlap"][kind]["computed_s"], *row["overlap"][kind]["exposed_s"]) > 0
        assert row["hidden"] < 1
    assert report["rows"][2]["overlap"] is None


def test_a_prompt_beyond_the_models_context_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "handoff", "--model", str(model), "--cache-dir", str(model.parent)]
    assert main([*command, "--prompt", str(CONTEXT + 1)]) == 2
    assert f"Prompts of {CONTEXT + 1} tokens exceed the model's {CONTEXT}." in capsys.readouterr().err
