"""The safetensors container: where each tensor's bytes stand, from headers alone.

Format: 8 bytes little-endian header length, a JSON object of tensors, then the data. Lengths are checked before they
are believed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import StartupError
from headrace.modelfiles.files import TensorEntry

_MAX_HEADER = 100 * 1024 * 1024  # the format's own limit
ENCODINGS: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files that hold the weights, sorted. Raises StartupError if there are none or an indexed one is missing."""
    index = directory / _INDEX
    if not index.exists():
        if not (directory / _SINGLE).exists():
            raise StartupError(
                f"{directory} has neither {_SINGLE} nor {_INDEX}.",
                remedy="Give a directory with safetensors weights, or a .gguf file.",
            )
        return (directory / _SINGLE,)
    files = tuple(directory / name for name in sorted(_indexed_names(index)))
    for file in files:
        if not file.is_file():
            raise StartupError(f"{directory} lacks {file.name}, which its index names.", remedy="Fetch it again.")
    return files


def read_tensors(files: Sequence[Path]) -> tuple[TensorEntry, ...]:
    """All tensors of the files. Raises StartupError for a cut or broken header and for other element types."""
    entries = tuple(entry for file in files for entry in _read_file(file))
    if len({entry.name for entry in entries}) != len(entries):
        raise StartupError(f"{files[0].parent} holds two tensors of the same name.", remedy="Fetch the files again.")
    return entries


def _indexed_names(index: Path) -> set[str]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(index, "it has no weight_map") from error
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise _broken(index, "its weight_map does not name files of its directory")
    return names


def _read_file(path: Path) -> list[TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MAX_HEADER, size - 8):
            raise _broken(path, "it ends inside its header")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise _broken(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    return [_entry(path, name, row, 8 + length, size) for name, row in header.items()]


def _entry(path: Path, name: str, row: Any, start: int, size: int) -> TensorEntry:
    try:
        encoding, shape = str(row["dtype"]), tuple(row["shape"])
        begin, end = row["data_offsets"]
        numbers = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"the entry of tensor {name!r} is incomplete") from error
    if encoding not in ENCODINGS:
        raise StartupError(
            f"{path} stores tensor {name!r} as {encoding}, which is not supported.",
            remedy=f"Use weights in {', '.join(ENCODINGS)}.",
        )
    if not numbers or end - begin != math.prod(shape) * ENCODINGS[encoding] or start + end > size:
        raise _broken(path, f"the bytes of tensor {name!r} do not lie where its header says")
    return TensorEntry(name, path, start + begin, end - begin, encoding, shape)


def _broken(path: Path, why: str) -> StartupError:
    return StartupError(f"{path} is not a readable safetensors file: {why}.", remedy="Fetch the file again.")
