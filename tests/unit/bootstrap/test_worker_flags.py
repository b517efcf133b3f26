"""A worker's flags reach its engine: what the engine refuses ends the start with a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.random_gguf import write_random


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--cpu-isa", "avx2", "--kernels", "torch"), "cpu_isa needs the native kernels"),
        (("--cpu-isa", "neon"), "Input should be 'auto', 'avx2', 'avx512' or 'avx512bf16'"),
    ],
)
def test_an_instruction_set_that_cannot_be_used_is_refused(
    flags: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    model = write_random(tmp_path / "random.gguf")
    nobody = ("--link", "tcp", "--redis-url", "redis://127.0.0.1:9", "--cache-dir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "worker", str(model), *flags, *nobody],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
