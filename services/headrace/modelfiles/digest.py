"""The model digest: 16 bytes that differ whenever weights, configuration or tokenizer differ.

It is taken over the files' whole contents and not over anything this program derives from them, so two builds of
Headrace agree on it. Reading everything takes seconds for large models: `sidecar` keeps the result.
"""

from collections.abc import Sequence
from pathlib import Path

import xxhash

_CHUNK = 1 << 22


def content_hash(path: Path) -> bytes:
    """xxh3_128 of a file's bytes."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.digest()


def files_digest(paths: Sequence[Path]) -> bytes:
    """One hash over the files' contents, in their order. 16 bytes; names do not matter."""
    state = xxhash.xxh3_128(b"headrace model")
    for path in paths:
        state.update(content_hash(path))
    return state.digest()
