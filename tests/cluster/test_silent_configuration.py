"""A service that lacks what it needs says so in one sentence, and nothing before it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHIN_S = 60.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("worker",), "A worker needs the fleet's Redis."),
        (("worker", "--redis-url=redis://localhost", "--data-port-range=9-1"), "9-1"),
        (("router",), "A router needs the fleet's Redis."),
        (("frontend",), "A router needs the fleet's Redis."),
        (("placement",), "A placement needs a configuration file with pools."),
    ],
)
def test_the_sentence_stands_alone(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN_S, env=environment, cwd=tmp_path, check=False
    )
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
