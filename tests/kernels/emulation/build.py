"""Builds the native kernels with AVX-512's instructions in plain loops, so that any processor with AVX2 runs them.

The sources are the product's own but for the question what the processor can run.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace_kernels import native

_HERE = Path(__file__).parent
_CSRC = Path(native.__file__).parent / "csrc"
_FLAGS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-mavx2", "-mfma", "-mf16c", "-fPIC", "-fno-math-errno"),
    *(
        "-ffp-contract=off",
        "-Wno-psabi",
        "-Wno-maybe-uninitialized",
        "-DEMULATED",
        f"-I{_CSRC}",
        "-include",
        str(_HERE / "avx512.h"),
    ),
)


def compiler() -> str | None:
    """A C++ compiler that knows GCC's vectors and pragmas; None where there is none."""
    return shutil.which("g++")


def build(directory: Path) -> Path:
    """The shared library, in `directory`. Takes tens of seconds."""
    sources = [path for path in sorted(_CSRC.glob("*.cpp")) if path.name != "processor.cpp"]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: _compile(source, directory), [*sources, *_HERE.glob("*.cpp")]))
    library = directory / "native_emulated.so"
    _run("-shared", "-pthread", *map(str, objects), "-o", str(library))
    return library


def _compile(source: Path, directory: Path) -> Path:
    to = directory / f"{source.stem}.o"
    _run(*_FLAGS, "-c", str(source), "-o", str(to))
    return to


def _run(*arguments: str) -> None:
    done = subprocess.run([str(compiler()), *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
