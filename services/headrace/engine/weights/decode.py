"""Tensor encodings: the bytes of one tensor in a model file, or of a part of it, to float32 values.

Owns ggml's block formats and the plain floats (ggml-quants.h is the source of the former). It knows no layer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.errors import StartupError
from headrace.modelfiles.files import TensorEntry

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

_BLOCK_VALUES = 32


@dataclass(frozen=True, slots=True)
class Encoding:
    """`values` numbers stand in `nbytes` bytes; decode takes whole blocks, one after another."""

    values: int
    nbytes: int
    decode: Callable[[_Bytes], _Floats]


def read_tensor(entry: TensorEntry, rows: slice = slice(None), columns: slice = slice(None)) -> _Floats:
    """Rows and columns of a tensor as float32, with GGUF's row permutation undone. No other bytes are read.

    A tensor of one dimension has `columns` only. Permuted rows must be those of whole heads. Raises StartupError for
    a broken file.
    """
    values = _decoded(mapped_rows(entry), entry, rows, columns)
    if entry.permuted_heads:
        values = _unpermute(values, entry.permuted_heads * values.shape[0] // entry.shape[0])
    return values if len(entry.shape) > 1 else values[0]


def mapped_rows(entry: TensorEntry) -> _Bytes:
    """The bytes of a tensor as they are, [row, byte], out of a map of its file. A tensor of one dimension is one row.

    Raises StartupError for an encoding that is not known, and where the file does not hold what the entry says.
    """
    encoding = ENCODINGS.get(entry.encoding)
    if encoding is None:
        raise StartupError(
            f"Tensor {entry.name} is encoded as {entry.encoding}, which is not supported.",
            remedy=f"Use a file with {', '.join(ENCODINGS)}.",
        )
    width = entry.shape[-1]
    try:
        raw = np.memmap(entry.path, dtype=np.uint8, mode="r", offset=entry.offset, shape=(entry.nbytes,))
        lines: _Bytes = raw.reshape(-1, width // encoding.values * encoding.nbytes)
        if len(lines) * width != np.prod(entry.shape):
            raise ValueError(f"{entry.nbytes} bytes do not hold the shape {entry.shape}")
    except (OSError, ValueError) as error:
        raise StartupError(
            f"Tensor {entry.name} cannot be read from {entry.path}: {error}.", remedy="Fetch the model again."
        ) from error
    return lines


def _decoded(lines: _Bytes, entry: TensorEntry, rows: slice, columns: slice) -> _Floats:
    """[row, column]. Whole blocks around the wanted columns are decoded, and cut."""
    encoding, width = ENCODINGS[entry.encoding], entry.shape[-1]
    start, stop, _ = columns.indices(width)
    first, last = start // encoding.values, -(-stop // encoding.values)
    blocks = np.ascontiguousarray(lines[rows, first * encoding.nbytes : last * encoding.nbytes])
    values = encoding.decode(blocks.reshape(-1)).reshape(len(blocks), (last - first) * encoding.values)
    return values[:, start - first * encoding.values : stop - first * encoding.values]


def _unpermute(values: _Floats, heads: int) -> _Floats:
    """From rows interleaved for rope over neighbours to Hugging Face's rope over halves."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)


def _f32(raw: _Bytes) -> _Floats:
    return raw.view(np.float32)


def _f16(raw: _Bytes) -> _Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: _Bytes) -> _Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: _Bytes) -> _Floats:
    """Blocks of a float16 scale and 32 int8."""
    blocks = raw.reshape(-1, 2 + _BLOCK_VALUES)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return blocks[:, 2:].view(np.int8).astype(np.float32) * scale


def _q4_0(raw: _Bytes) -> _Floats:
    """Blocks of a float16 scale and 32 nibbles, each 8 more than its multiple of the scale, ordered as Q4_1's."""
    blocks = raw.reshape(-1, 2 + _BLOCK_VALUES // 2)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    nibbles = _nibbles(blocks[:, 2:])
    nibbles -= 8
    nibbles *= scale
    return nibbles


def _q4_1(raw: _Bytes) -> _Floats:
    """Blocks of a float16 scale, a float16 minimum and 32 nibbles, the low halves of the 16 bytes first."""
    blocks = raw.reshape(-1, 4 + _BLOCK_VALUES // 2)
    scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, None]
    nibbles = _nibbles(blocks[:, 4:])
    nibbles *= scale
    nibbles += minimum
    return nibbles


def _nibbles(packed: _Bytes) -> _Floats:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1).astype(np.float32)


ENCODINGS: dict[str, Encoding] = {
    "F32": Encoding(1, 4, _f32),
    "F16": Encoding(1, 2, _f16),
    "BF16": Encoding(1, 2, _bf16),
    "Q8_0": Encoding(_BLOCK_VALUES, 2 + _BLOCK_VALUES, _q8_0),
    "Q4_0": Encoding(_BLOCK_VALUES, 2 + _BLOCK_VALUES // 2, _q4_0),
    "Q4_1": Encoding(_BLOCK_VALUES, 4 + _BLOCK_VALUES // 2, _q4_1),
}
