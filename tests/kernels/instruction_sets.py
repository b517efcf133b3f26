"""Every instruction set of the native kernels, as fixtures: this processor's own, and the wide ones emulated.

Import both into a test module: each of its tests then runs once a set.
"""

import ctypes
from pathlib import Path

import pytest
from kernels.emulation.build import build, compiler

from headrace_kernels import native


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with AVX-512's instructions in plain loops. It needs AVX2, as does the library that is tested."""
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    if compiler() is None:
        pytest.skip("There is no g++ here to build the emulation with.")
    return build(tmp_path_factory.mktemp("emulation"))


@pytest.fixture(params=["own", "avx512", "avx512bf16"], autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    if request.param != "own":
        library: ctypes.CDLL = native.open_library(request.getfixturevalue("emulation"))
        monkeypatch.setattr(native, "_library", lambda: library)
        native.choose(request.param)
