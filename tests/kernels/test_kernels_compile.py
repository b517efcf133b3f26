"""The interpreter takes Python that Triton's compiler refuses: every kernel must also become a GPU's machine code."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

KERNELS = {"_attend_tile", "_join_parts", "_write_token", "_copy_page", "_norm_row", "_turn_heads", "_gate_values"}
# Bytes of shared memory that a program may have, by compute capability: what needs more compiles, and fails to launch.
SHARED = {"80": 163 * 1024, "90": 227 * 1024}


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What a process for each capability said. They run beside each other."""
    caches = [tmp_path_factory.mktemp("triton") for _ in SHARED]
    with ThreadPoolExecutor(len(SHARED)) as pool:
        return dict(zip(SHARED, pool.map(_compiled, SHARED, caches), strict=True))


def _compiled(capability: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("compile_kernels.py")), capability],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("capability", SHARED)
def test_every_kernel_compiles_without_a_warning_and_fits(
    capability: str, compilers: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    child = compilers[capability]
    assert child.returncode == 0, child.stderr
    launches = [line.split() for line in child.stdout.splitlines()]
    assert {name for name, _ in launches} == KERNELS
    assert max(int(shared) for _, shared in launches) <= SHARED[capability]
