"""Tensor encodings: the bytes of one tensor in a model file to float32 values.

Owns ggml's block formats and the plain floats (ggml-quants.h is the source of the former). It knows no layer.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.core.errors import StartupError
from headrace.modelfiles.files import TensorEntry

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

_BLOCK_VALUES = 32


def read_tensor(entry: TensorEntry) -> _Floats:
    """A tensor's values in its shape, with GGUF's row permutation undone. Raises StartupError for a broken file."""
    decode = _DECODERS.get(entry.encoding)
    if decode is None:
        raise StartupError(
            f"Tensor {entry.name} is encoded as {entry.encoding}, which is not supported.",
            remedy=f"Use a file with {', '.join(_DECODERS)}.",
        )
    try:
        raw = np.memmap(entry.path, dtype=np.uint8, mode="r", offset=entry.offset, shape=(entry.nbytes,))
        values = decode(raw).reshape(entry.shape)
    except (OSError, ValueError) as error:
        raise StartupError(
            f"Tensor {entry.name} cannot be read from {entry.path}: {error}.", remedy="Fetch the model again."
        ) from error
    return _unpermute(values, entry.permuted_heads) if entry.permuted_heads else values


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


def _q4_1(raw: _Bytes) -> _Floats:
    """Blocks of a float16 scale, a float16 minimum and 32 nibbles, the low halves of the 16 bytes first."""
    blocks = raw.reshape(-1, 4 + _BLOCK_VALUES // 2)
    scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, None]
    packed = blocks[:, 4:]
    nibbles = np.concatenate((packed & 0x0F, packed >> 4), axis=1).astype(np.float32)
    nibbles *= scale
    nibbles += minimum
    return nibbles


_DECODERS: dict[str, Callable[[_Bytes], _Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_1": _q4_1,
}
