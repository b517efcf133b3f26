"""How many bytes a model's weights take once they are loaded.

Owns the arithmetic, for whoever plans memory; no torch here.
"""

from collections import defaultdict
from math import prod

from headrace.core.layout import DTYPE_BYTES
from headrace.engine.weights.formats import matrix_format, matrix_name
from headrace.modelfiles.files import ModelFiles, TensorEntry

_REPLICATED = "model.embed_tokens.weight"
_GROUP = 32
# Of a group: two halves and 32 codes of 4 bits, or a half and 32 of 8 bits.
_GROUP_BYTES = {"INT4": 2 * 2 + _GROUP // 2, "INT8_GROUPS": 2 + _GROUP}


def weight_bytes(files: ModelFiles, dtype: str, ranks: int = 1, quantization: str | None = None) -> int:
    """Bytes that one of `ranks` ranks holds. dtype: a key of DTYPE_BYTES; quantization: see EngineOptions.

    The little that every rank holds of norms counts as split.
    """
    matrices: defaultdict[str, list[TensorEntry]] = defaultdict(list)
    for entry in files.tensors:
        matrices[matrix_name(entry.name)].append(entry)
    sizes: dict[str, int] = {}
    for name, parts in matrices.items():
        multiplied = name != _REPLICATED or files.config.tied_embeddings
        format = matrix_format(quantization, {part.encoding for part in parts}, multiplied=multiplied)
        sizes[name] = _loaded_bytes(parts, format, DTYPE_BYTES[dtype])
    whole = sizes.pop(_REPLICATED, 0)
    return whole + -(-sum(sizes.values()) // ranks)


def _loaded_bytes(parts: list[TensorEntry], format: str | None, value_bytes: int) -> int:
    """parts: of one matrix, or of what is none."""
    values, rows = sum(prod(part.shape) for part in parts), sum(part.shape[0] for part in parts)
    if format is None or len(parts[0].shape) == 1:
        return values * value_bytes
    # INT8 has a float for each row.
    return values + 4 * rows if format == "INT8" else values // _GROUP * _GROUP_BYTES[format]
