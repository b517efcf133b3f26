"""The interpreter takes Python that Triton's compiler refuses: every kernel must also become a GPU's machine code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {"_attend_tile", "_join_parts", "_write_token", "_copy_page", "_norm_row", "_turn_heads", "_gate_values"}
# Bytes of shared memory that a program may have, by compute capability: what needs more compiles, and fails to launch.
SHARED = {"80": 163 * 1024, "90": 227 * 1024}


@pytest.mark.parametrize("capability", SHARED)
def test_every_kernel_compiles_without_a_warning_and_fits(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = str(Path(__file__).with_name("compile_kernels.py"))
    child = subprocess.run(
        [sys.executable, "-W", "error", script, capability],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    launches = [line.split() for line in child.stdout.splitlines()]
    assert {name for name, _ in launches} == KERNELS
    assert max(int(shared) for _, shared in launches) <= SHARED[capability]
