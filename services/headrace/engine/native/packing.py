"""Packs a model's matrices: each once, in its own format, the one asked for, or that of its file's bits.

Owns what formats and a file's encodings are called by the kernels. A matrix goes from the map of its file straight into
the packed one.
"""

import numpy as np

from headrace.engine.weights.formats import matrix_format
from headrace.engine.weights.stored import StoredMatrix
from headrace_kernels.native import Format, Packed, Stored

_STORED: dict[str, Stored] = {kind.name: kind for kind in Stored}


class Packer:
    """own: the model's dtype. quantization: as in EngineOptions. threads: that pack."""

    def __init__(self, own: Format, quantization: str | None, threads: int) -> None:
        self._own, self._quantization, self._threads = own, quantization, threads
        self._packed: dict[StoredMatrix, Packed] = {}

    def pack(self, matrix: StoredMatrix, *, multiplied: bool = True) -> Packed:
        """multiplied: see matrix_format. One that was packed before, as a head that is tied to the embedding, is not
        packed again. Raises StartupError for a broken file."""
        if matrix not in self._packed:
            name = matrix_format(self._quantization, matrix.encodings, multiplied=multiplied)
            self._packed[matrix] = self._from_file(matrix, self._own if name is None else Format[name])
        return self._packed[matrix]

    def _from_file(self, matrix: StoredMatrix, format: Format) -> Packed:
        with matrix.mapped() as rows:
            stored = [np.full(len(part), _STORED[encoding], dtype=np.int32) for part, encoding in rows]
            addresses = np.concatenate([part for part, _ in rows])
            return Packed.of_rows(addresses, np.concatenate(stored), matrix.columns, format, self._threads)
