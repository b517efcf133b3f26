"""Where there is a compiler and a processor that the native kernels know, an installation has them."""

import shutil
from pathlib import Path

import pytest

from headrace_kernels import native

CPUINFO = Path("/proc/cpuinfo")


def test_they_are_built_where_they_can_be() -> None:
    """A build that fails leaves an installation that works, on torch: nothing else would tell."""
    if shutil.which("g++") is None or not CPUINFO.exists() or " avx2 " not in CPUINFO.read_text():
        pytest.skip("There is no g++ here, or no AVX2.")
    assert native.instruction_set() is not None
