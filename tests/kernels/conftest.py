"""Where the kernels run: on the GPU where there is one, else on the CPU under Triton's interpreter.

Triton decides at its first import and looks again at each launch, so the interpreter is switched on around the import
of the kernels and around each test here, and off again: no other test and no child process sees the variable.
On a machine with a GPU, TRITON_INTERPRET=1 in the environment runs the interpreter all the same.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from kernels.emulation.build import built, compiler

from headrace.engine import ops
from headrace_kernels import native

INTERPRETED = not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


def _import_kernels() -> None:
    import headrace_kernels.gate
    import headrace_kernels.kv_write
    import headrace_kernels.mixed_attention
    import headrace_kernels.page_pack
    import headrace_kernels.rms_norm
    import headrace_kernels.rope  # noqa: F401


if not INTERPRETED:
    # Without it cuBLAS refuses to work while _poisoned_scratch asks for deterministic algorithms.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if INTERPRETED:
    if "triton" in sys.modules:
        raise pytest.UsageError("Something imported triton before tests/kernels could switch its interpreter on.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        _import_kernels()


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def _poisoned_scratch() -> Iterator[None]:
    """Memory that a launch allocates without filling it holds NaN, so what is read unwritten shows."""
    before, scratch = torch.are_deterministic_algorithms_enabled(), native.scratch
    torch.use_deterministic_algorithms(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "scratch", lambda *sizes: _poisoned(scratch(*sizes)))
        yield
    torch.use_deterministic_algorithms(before)


def _poisoned(room: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8] | None:
    if room is not None:
        room.fill(0xFF)  # of which floats are NaN
    return room


@pytest.fixture
def on_cpu_tensors(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Iterator[None]:
    """Triton's kernels for every tensor: the interpreter takes those of a CPU."""
    if device.type != "cpu":
        pytest.skip("CPU tensors need Triton's interpreter: set TRITON_INTERPRET=1.")
    with monkeypatch.context() as patch:
        patch.setattr(ops, "picks_triton", lambda tensor: True)
        yield


@pytest.fixture
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's matrix products are numpy's, whose bits depend on which row of a matrix a query happens to be;
    those of a tensor core do not."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def dot(_: object, a: Any, b: Any, d: Any, *options: object) -> Any:
        exact = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
        return TensorHandle(exact.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ctypes.CDLL]:
    """Loads the native kernels with AVX-512's instructions in plain loops: a library of its own each time, for one
    keeps to the instruction set that it has packed for. It needs AVX2, as does the library that is tested."""
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    if compiler() is None:
        pytest.skip("There is no g++ here to build the emulation with.")
    library = built()

    def load() -> ctypes.CDLL:
        # Under another path, or the loader would give the one that it has.
        return native.open_library(Path(shutil.copy(library, tmp_path_factory.mktemp("emulation"))))

    return load


@pytest.fixture(scope="session")
def emulated(emulation: Callable[[], ctypes.CDLL]) -> dict[str, ctypes.CDLL]:
    """A library for each wide instruction set."""
    libraries = {key: emulation() for key in ("avx512", "avx512bf16")}
    assert [library.headrace_choose(key.encode()) for key, library in libraries.items()] == [0, 0]
    return libraries
