"""The sidecar: what was learnt from a model's files, written once so that no start works it out again.

A directory with `model.json` and, for a GGUF, the `tokenizer.json` made from it. It is stale, and then written again,
when a source's size or modification time, the tokenizer's contents or this format's version is another.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headrace.modelfiles.digest import content_hash
from headrace.modelfiles.files import Experts, ModelConfig, ModelFiles, RopeScaling, TensorEntry

_VERSION = 2
_MODEL = "model.json"


def fingerprint(sources: Sequence[Path]) -> list[list[str | int]]:
    """What tells whether the files a sidecar was made from have changed."""
    stats = [(path.name, path.stat()) for path in sources]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def load(directory: Path, sources: Sequence[Path], tokenizer: Path) -> ModelFiles | None:
    """What `store` wrote for these sources; None where there is nothing, or it is stale or damaged. The name is ""."""
    try:
        document = json.loads((directory / _MODEL).read_bytes())
        if document["version"] != _VERSION or document["sources"] != fingerprint(sources):
            return None
        if document["tokenizer_hash"] != content_hash(tokenizer).hex():
            return None
        return _from_document(document, sources, tokenizer)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        # Whatever is wrong with it, a sidecar can be made again from its sources.
        return None


def store(directory: Path, sources: Sequence[Path], made_from: list[list[str | int]], files: ModelFiles) -> None:
    """Write `model.json`. made_from: the fingerprint taken before the sources were read."""
    document = {
        "version": _VERSION,
        "sources": made_from,
        "tokenizer_hash": content_hash(files.tokenizer_json).hex(),
        "digest": files.digest.hex(),
        "config": asdict(files.config),
        "tensors": [_tensor_row(entry, sources) for entry in files.tensors],
        "chat_template": files.chat_template,
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "add_bos": files.add_bos,
        "stop_ids": files.stop_ids,
    }
    write_atomically(directory / _MODEL, json.dumps(document, indent=1).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, whole, also after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def named(files: ModelFiles, name: str) -> ModelFiles:
    """The same model under the name it was asked for by."""
    return replace(files, name=name)


def _tensor_row(entry: TensorEntry, sources: Sequence[Path]) -> list[Any]:
    source = sources.index(entry.path)
    return [entry.name, source, entry.offset, entry.nbytes, entry.encoding, entry.shape, entry.permuted_heads]


def _from_document(document: dict[str, Any], sources: Sequence[Path], tokenizer: Path) -> ModelFiles:
    tensors = tuple(
        TensorEntry(name, sources[source], offset, nbytes, encoding, tuple(shape), permuted)
        for name, source, offset, nbytes, encoding, shape, permuted in document["tensors"]
    )
    return ModelFiles(
        name="",
        config=_config(document["config"]),
        tensors=tensors,
        tokenizer_json=tokenizer,
        chat_template=document["chat_template"],
        bos_token=document["bos_token"],
        eos_token=document["eos_token"],
        add_bos=document["add_bos"],
        stop_ids=tuple(document["stop_ids"]),
        digest=bytes.fromhex(document["digest"]),
    )


def _config(row: dict[str, Any]) -> ModelConfig:
    """JSON knows no tuples and no classes."""
    nested: dict[str, Any] = {"rope_scaling": RopeScaling(**_tuples(row["rope_scaling"]))}
    if row["experts"] is not None:
        nested["experts"] = Experts(**_tuples(row["experts"]))
    return ModelConfig(**(_tuples(row) | nested))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
