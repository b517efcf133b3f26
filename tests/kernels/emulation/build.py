"""Builds the native kernels with AVX-512's instructions in plain loops, so that any processor with AVX2 runs them.

The sources are the product's own but for the question what the processor can run.
"""

import hashlib
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace_kernels import native

_HERE = Path(__file__).parent
_CSRC = Path(native.__file__).parent / "csrc"
_KEPT = _HERE.parents[2] / "build" / "emulation"
_FLAGS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-mavx2", "-mfma", "-mf16c", "-fPIC", "-fno-math-errno"),
    *("-ffp-contract=off", "-Wno-psabi", "-Wno-maybe-uninitialized", "-DEMULATED"),
)


def compiler() -> str | None:
    """A C++ compiler that knows GCC's vectors and pragmas; None where there is none."""
    return shutil.which("g++")


def built() -> Path:
    """The shared library: of an earlier run, if it was made of the same. Else it takes half a minute."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    library = _KEPT / f"{_digest()}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_KEPT) as room:
            made = _build(Path(room))
            for stale in _KEPT.glob("*.so"):
                stale.unlink(missing_ok=True)
            made.replace(library)  # at once: no run beside this one sees half of it
    return library


def _sources() -> list[Path]:
    replaced = _CSRC / "processor.cpp"
    files = [*sorted(_CSRC.glob("*")), *sorted(_HERE.glob("*.cpp")), *sorted(_HERE.glob("*.h"))]
    return [path for path in files if path.is_file() and path != replaced]


def _digest() -> str:
    """Of all that the library is made of."""
    parts = [_run("--version").encode(), *(flag.encode() for flag in _FLAGS)]
    for path in _sources():
        parts += [path.name.encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _build(directory: Path) -> Path:
    sources = [path for path in _sources() if path.suffix == ".cpp"]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: _compile(source, directory), sources))
    library = directory / "native_emulated.so"
    _run("-shared", "-pthread", *map(str, objects), "-o", str(library))
    return library


def _compile(source: Path, directory: Path) -> Path:
    to = directory / f"{source.stem}.o"
    _run(*_FLAGS, f"-I{_CSRC}", "-include", str(_HERE / "avx512.h"), "-c", str(source), "-o", str(to))
    return to


def _run(*arguments: str) -> str:
    done = subprocess.run([str(compiler()), *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
