"""Sampling gives numpy's numbers with whatever flags csrc/sample.cpp is compiled beside those of setup.py."""

import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import setuptools
from kernels.emulation.build import compiler

from headrace.engine.native.sampling import NativeRows
from headrace.engine.row_kernels import NumpyRows
from headrace_kernels import native, native_sampling

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeRows:
    """Sampling as CFLAGS=-march=haswell builds it, whose compiler may fuse multiplications into additions."""
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    if compiler() is None:
        pytest.skip("There is no g++ here to build with.")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    flags = runpy.run_path("setup.py")["NATIVE"].extra_compile_args
    library = tmp_path / "_native_fused.so"
    source = Path(native.__file__).parent / "csrc" / "sample.cpp"
    command = [str(compiler()), "-march=haswell", *flags, "-fPIC", "-shared", str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=100)
    opened = native_sampling.open_library(library)
    monkeypatch.setattr(native_sampling, "_library", lambda: opened)
    return NativeRows()


def test_no_flag_fuses_what_numpy_rounds_twice(fused: NativeRows) -> None:
    rows = (np.random.default_rng(0).standard_normal((300, 1025)) * 5).astype(np.float32)
    for token, row in enumerate(rows):
        mass, before, top = fused.standing(row, token, 5)
        expected = NumpyRows().standing(row, token, 5)
        assert (mass, before, top.tolist()) == (expected[0], expected[1], expected[2].tolist())
