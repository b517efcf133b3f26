"""The shared library that csrc is built into: where it stands, and how its functions are declared. It knows none."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# By name what a function returns, None for nothing, and its arguments.
Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]


def built() -> Path | None:
    """The library, if the native kernels were built."""
    return next(iter(sorted(Path(__file__).parent.glob("_native*.so"))), None)


def opened(path: Path | None, signatures: Signatures) -> ctypes.CDLL:
    """The functions of `path`, as `built` gives it. Raises RuntimeError if there is none."""
    if path is None:
        raise RuntimeError(
            "The native kernels were not built. Build them with `python setup.py build_ext --inplace`, or use torch's."
        )
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
