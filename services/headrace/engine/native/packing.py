"""Packs a model's matrices: each once, in its own format, the one asked for, or that of its file's bits.

Owns what formats and a file's encodings are called by the kernels. A matrix that stands in a file goes from its map
straight into the packed one.
"""

import numpy as np
from torch import Tensor

from headrace.engine.weights.formats import matrix_format
from headrace.engine.weights.stored import StoredMatrices, StoredMatrix
from headrace_kernels.native import Format, Packed, Stored

_STORED: dict[str, Stored] = {kind.name: kind for kind in Stored}


class Packer:
    """own: the model's dtype. quantization: as in EngineOptions. threads: that pack."""

    def __init__(self, own: Format, quantization: str | None, stored: StoredMatrices, threads: int) -> None:
        self._own, self._quantization = own, quantization
        self._stored, self._threads = stored, threads
        self._packed: dict[int, Packed] = {}

    def pack(self, weight: Tensor, *, multiplied: bool = True) -> Packed:
        """[columns, inner]. multiplied: see matrix_format. The tensor's own values are freed. One that was packed
        before, as a head that is tied to the embedding, is not packed again. Raises StartupError for a broken file."""
        if id(weight) not in self._packed:
            matrix = self._stored.of(weight)
            encodings = frozenset[str]() if matrix is None else matrix.encodings
            name = matrix_format(self._quantization, encodings, multiplied=multiplied)
            format = self._own if name is None else Format[name]
            packed = self._from_memory(weight, format) if matrix is None else self._from_file(matrix, format)
            self._packed[id(weight)] = packed
        return self._packed[id(weight)]

    def _from_memory(self, weight: Tensor, format: Format) -> Packed:
        packed = Packed.of(weight, format, self._threads)
        weight.untyped_storage().resize_(0)  # a model is loaded once, not twice
        return packed

    def _from_file(self, matrix: StoredMatrix, format: Format) -> Packed:
        with matrix.rows() as rows:
            stored = [np.full(len(part), _STORED[encoding], dtype=np.int32) for part, encoding in rows]
            addresses = np.concatenate([part for part, _ in rows])
            return Packed.of_rows(addresses, np.concatenate(stored), matrix.columns, format, self._threads)
