"""How many bytes a model's weights take once they are loaded.

Owns the arithmetic, for whoever plans memory; no torch here.
"""

from math import prod

from headrace.core.layout import DTYPE_BYTES
from headrace.modelfiles.files import ModelFiles, TensorEntry

# Encodings of ggml whose bits the native kernels can keep.
KEPT_ENCODINGS = frozenset({"Q4_0", "Q4_1", "Q8_0"})
_REPLICATED = "model.embed_tokens.weight"
_GROUP = 32


def weight_bytes(files: ModelFiles, dtype: str, ranks: int = 1, quantization: str | None = None) -> int:
    """Bytes that one of `ranks` ranks holds. dtype: a key of DTYPE_BYTES; quantization: see EngineOptions.

    The little that every rank holds of norms counts as split.
    """
    sizes = {entry.name: _loaded_bytes(entry, DTYPE_BYTES[dtype], quantization) for entry in files.tensors}
    whole = sizes.pop(_REPLICATED, 0)
    return whole + -(-sum(sizes.values()) // ranks)


def _loaded_bytes(entry: TensorEntry, value_bytes: int, quantization: str | None) -> int:
    values = prod(entry.shape)
    if len(entry.shape) == 1 or quantization is None:
        return values * value_bytes
    if quantization == "gguf":
        return entry.nbytes if entry.encoding in KEPT_ENCODINGS else values * value_bytes
    # A float for each row; or half a byte a value, and two halves for each group.
    return values + 4 * entry.shape[0] if quantization == "int8" else values // 2 + values // _GROUP * 4
