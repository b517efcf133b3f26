"""The interpreter takes Python that Triton's compiler refuses: every kernel must also become a GPU's machine code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {"_attend_split", "_join_splits", "_write_token", "_copy_page"}


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_compiles_without_a_warning(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = str(Path(__file__).with_name("compile_kernels.py"))
    child = subprocess.run(
        [sys.executable, "-W", "error", script, capability],
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert set(child.stdout.split()) == KERNELS
