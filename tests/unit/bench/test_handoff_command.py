"""`headrace bench handoff` as a user runs it, on a tiny model: two processes, figures that are possible, refusals."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fixtures.random_gguf import CONTEXT, write_random

from headrace.cli import main
from headrace.core.ticket import UNIT_BLOCKS
from headrace.testbed.namespaces import obstacle
from headrace.transfer.link import END_UNIT

WHY_NOT = obstacle(("ip", "tc"))


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


@pytest.mark.skipif(bool(WHY_NOT), reason=f"a network of namespaces cannot be made: {WHY_NOT}")
def test_a_network_holds_links_to_its_rate_and_leaves_others_out(model: Path) -> None:
    flags = ("--gbits", "0.2", "--links", "tcp,loopback", "--blocks", "40", "--rounds", "2", "--prompt", "0")
    command = [sys.executable, "-m", "headrace.cli", "bench", "handoff", "--model", str(model), "--json", *flags]
    done = subprocess.run(
        [*command, "--threads", "1", "--cache-dir", str(model.parent)], capture_output=True, timeout=110, check=True
    )
    report = json.loads(done.stdout)
    assert report["gbits"] == 0.2
    assert [row["name"] for row in report["rows"]] == ["tcp"]
    assert max(*report["rows"][0]["bare"], *report["rows"][0]["handoff"]) < 2 * 0.2e9 / 8


def test_a_network_for_links_that_need_none_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "handoff", "--model", str(model), "--cache-dir", str(model.parent)]
    assert main([*command, "--gbits", "10", "--links", "loopback"]) == 2
    assert "None of these links leaves a host: loopback." in capsys.readouterr().err


def test_a_prompt_beyond_the_models_context_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "handoff", "--model", str(model), "--cache-dir", str(model.parent)]
    assert main([*command, "--prompt", str(CONTEXT + 1)]) == 2
    assert f"Prompts of {CONTEXT + 1} tokens exceed the model's {CONTEXT}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (99_999_999, f"One hand-off has at most {END_UNIT * UNIT_BLOCKS} blocks, and not 99999999. Lower --blocks."),
        (END_UNIT * UNIT_BLOCKS, "blocks take 2.0 GiB in two processes, and 0.2 GiB of memory are free. Lower"),
    ],
)
def test_more_blocks_than_there_is_room_for_are_refused(
    blocks: int, sentence: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**28, total=2**30))
    command = ["bench", "handoff", "--model", str(model), "--cache-dir", str(model.parent), "--prompt", "0"]
    assert main([*command, "--blocks", str(blocks)]) == 2
    assert sentence in capsys.readouterr().err
