"""In which format of the native kernels a matrix is kept, and which of a file's tensors are one matrix.

Owns both, for whoever packs matrices and whoever counts their bytes beforehand. Formats are names here; no torch.
"""

from collections.abc import Collection

# ggml's encodings whose bits the kernels can keep, and the format that holds their blocks.
KEPT_ENCODINGS = {"Q4_0": "INT4", "Q4_1": "INT4", "Q8_0": "INT8_GROUPS"}
# Parts of the names of a layer's tensors that are multiplied as one matrix, rows below rows.
QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")

_ROUNDED = {"int8": "INT8", "int4": "INT4"}


def matrix_format(quantization: str | None, encodings: Collection[str], *, multiplied: bool = True) -> str | None:
    """Of a matrix whose parts a file has in `encodings`; None for the model's dtype. quantization: see EngineOptions.

    "gguf" keeps the bits of a matrix whose parts one format holds: all of 4 bits, or all in Q8_0. multiplied: not so an
    embedding that is no head, of which a step reads a few rows: rounding them would lose and speed nothing up.
    """
    if quantization != "gguf":
        return _ROUNDED[quantization] if quantization is not None and multiplied else None
    formats = {KEPT_ENCODINGS.get(encoding) for encoding in encodings}
    return formats.pop() if len(formats) == 1 else None


def matrix_name(tensor: str) -> str:
    """The same for all tensors that are one matrix. tensor: its name."""
    for parts in (QUERY_KEY_VALUE, GATE_UP):
        for part in parts:
            tensor = tensor.replace(f".{part}.", f".{'+'.join(parts)}.")
    return tensor
