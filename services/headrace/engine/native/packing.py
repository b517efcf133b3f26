"""Packs a model's matrices: each once, in its own format, the one asked for, or that of its file's bits.

Owns the choice, and what a file's encodings are called by the kernels. A matrix that stands in a file goes from its map
straight into the packed one.
"""

import numpy as np
from torch import Tensor

from headrace.engine.weights.stored import StoredMatrices, StoredMatrix
from headrace_kernels.native import Format, Packed, Stored

_ROUNDED = {"int8": Format.INT8, "int4": Format.INT4}
_STORED: dict[str, Stored] = {kind.name: kind for kind in Stored}


class Packer:
    """own: the model's dtype. quantization: as in EngineOptions. threads: that pack."""

    def __init__(self, own: Format, quantization: str | None, stored: StoredMatrices, threads: int) -> None:
        self._own, self._quantization = own, quantization
        self._stored, self._threads = stored, threads
        self._packed: dict[int, Packed] = {}

    def pack(self, weight: Tensor) -> Packed:
        """[columns, inner]. The tensor's own values are freed. One that was packed before, as a head that is tied to
        the embedding, is not packed again. Raises StartupError for a broken file."""
        if id(weight) not in self._packed:
            matrix = self._stored.of(weight)
            self._packed[id(weight)] = self._from_memory(weight) if matrix is None else self._from_file(matrix)
        return self._packed[id(weight)]

    def _from_memory(self, weight: Tensor) -> Packed:
        packed = Packed.of(weight, packed_format(self._quantization, self._own, None), self._threads)
        weight.untyped_storage().resize_(0)  # a model is loaded once, not twice
        return packed

    def _from_file(self, matrix: StoredMatrix) -> Packed:
        format = packed_format(self._quantization, self._own, matrix)
        with matrix.rows() as rows:
            stored = [np.full(len(part), _STORED[encoding], dtype=np.int32) for part, encoding in rows]
            addresses = np.concatenate([part for part, _ in rows])
            return Packed.of_rows(addresses, np.concatenate(stored), matrix.columns, format, self._threads)


def packed_format(quantization: str | None, own: Format, matrix: StoredMatrix | None) -> Format:
    """quantization: as in EngineOptions. own: the model's dtype. matrix: where it stands, if that is in a file.

    "gguf" keeps the bits of a matrix whose parts are all of 4 bits, or all in Q8_0; any other is in `own`.
    """
    if quantization != "gguf":
        return own if quantization is None else _ROUNDED[quantization]
    encodings = frozenset[str]() if matrix is None else matrix.encodings
    if encodings and encodings <= {"Q4_0", "Q4_1"}:
        return Format.INT4
    return Format.INT8_GROUPS if encodings == {"Q8_0"} else own
