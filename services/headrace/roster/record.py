"""How a worker's info is written in its lease: versioned JSON that older and newer programs can read."""

import json
from typing import Any

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import DTYPE_BYTES, KvLayout

VERSION = 1
# What a lease without these fields means.
_LATER: dict[str, Any] = {"weights": "", "tensor_parallel": 1, "recipe": "", "oldest_protocol": 0}
_LATER_LAYOUT: dict[str, Any] = {"scale_bytes": 0}


def encode(info: WorkerInfo) -> bytes:
    """One line of JSON, equal for equal infos. Bytes are hexadecimal."""
    fields = {
        "version": VERSION,
        "worker": info.ref.worker,
        "incarnation": info.ref.incarnation,
        "role": info.role.value,
        "address": info.address,
        "model": info.model,
        "model_digest": info.model_digest.hex(),
        "layout": {
            "layers": info.layout.layers,
            "kv_heads": info.layout.kv_heads,
            "head_dim": info.layout.head_dim,
            "block_tokens": info.layout.block_tokens,
            "dtype": info.layout.dtype,
            "scale_bytes": info.layout.scale_bytes,
        },
        "max_model_len": info.max_model_len,
        "num_blocks": info.num_blocks,
        "max_jobs": info.max_jobs,
        "link": info.link,
        "data_address": info.data_address,
        "protocol": info.protocol,
        "pid": info.pid,
        "weights": info.weights.hex(),
        "tensor_parallel": info.tensor_parallel,
        "recipe": info.recipe,
        "oldest_protocol": info.oldest_protocol,
    }
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def decode(record: bytes) -> WorkerInfo:
    """The inverse of `encode`. Fields it does not know are ignored, and those that leases did not always have may be
    missing. Raises InvalidRequest if another one is, if one is of the wrong type, or if the version is another."""
    try:
        return _decode(record)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"A worker's lease cannot be read: {type(error).__name__}: {error}.") from error


def _decode(record: bytes) -> WorkerInfo:
    fields = _LATER | json.loads(record)
    if fields["version"] != VERSION:
        raise ValueError(f"version {fields['version']!r}, this program reads {VERSION}")
    return WorkerInfo(
        ref=WorkerRef(_text(fields, "worker"), _text(fields, "incarnation")),
        role=Role(_text(fields, "role")),
        address=_text(fields, "address"),
        model=_text(fields, "model"),
        model_digest=bytes.fromhex(_text(fields, "model_digest")),
        layout=_layout(fields["layout"]),
        max_model_len=_number(fields, "max_model_len"),
        num_blocks=_number(fields, "num_blocks"),
        max_jobs=_number(fields, "max_jobs"),
        link=_text(fields, "link"),
        data_address=_text(fields, "data_address"),
        protocol=_number(fields, "protocol"),
        pid=_number(fields, "pid"),
        weights=bytes.fromhex(_text(fields, "weights")),
        tensor_parallel=_number(fields, "tensor_parallel"),
        recipe=_text(fields, "recipe"),
        oldest_protocol=_number(fields, "oldest_protocol"),
    )


def _layout(fields: dict[str, Any]) -> KvLayout:
    fields = _LATER_LAYOUT | fields
    dtype = _text(fields, "dtype")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is unknown")
    return KvLayout(
        layers=_number(fields, "layers"),
        kv_heads=_number(fields, "kv_heads"),
        head_dim=_number(fields, "head_dim"),
        block_tokens=_number(fields, "block_tokens"),
        dtype=dtype,
        scale_bytes=_number(fields, "scale_bytes"),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is not a whole number")
    return value
