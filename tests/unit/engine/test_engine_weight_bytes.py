"""The formats of the native kernels' matrices; the bytes that memory is planned by are those that they take."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from fixtures.paged_model import PagedModel
from fixtures.tiny_model import CONFIG, tiny_files

from headrace.engine.weights.decode import ENCODINGS
from headrace.engine.weights.size import weight_bytes
from headrace.modelfiles.files import ModelConfig, ModelFiles
from headrace_kernels import native
from headrace_kernels.native import Format, Matrix, Packed

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")

# Rows that fill tiles, whatever the processor.
WHOLE = replace(CONFIG, vocab_size=320)
MIXTURES: dict[str, Mapping[str, str]] = {
    "Q4_0": {"": "Q4_0"},
    "Q4_1": {"": "Q4_1"},
    "Q8_0": {"": "Q8_0"},
    "BF16": {"": "BF16"},
    "4 bits in two ways": {"": "Q4_0", "k_proj": "Q4_1", "up_proj": "Q4_1"},
    "values of more bits": {"": "Q4_0", "v_proj": "Q8_0"},
    "a gate without blocks": {"": "Q8_0", "gate_proj": "F16"},
}


def files_of(directory: Path, mixture: Mapping[str, str], config: ModelConfig) -> ModelFiles:
    """Zeros, matrices in the encoding of the last key of `mixture` that is part of their name."""
    files = tiny_files(directory, config)
    path, entries = directory / "zeros.bin", []
    for entry in files.tensors:
        named = next(mixture[key] for key in reversed(list(mixture)) if key in entry.name)
        encoding = named if len(entry.shape) > 1 else "F32"
        size = prod(entry.shape) // ENCODINGS[encoding].values * ENCODINGS[encoding].nbytes
        entries.append(replace(entry, path=path, offset=0, nbytes=size, encoding=encoding))
    path.write_bytes(bytes(max(entry.nbytes for entry in entries)))
    return replace(files, tensors=tuple(entries))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Matrix]:
    """What is packed from now on."""
    matrices: list[Matrix] = []
    init = Packed.__init__

    def noted(self: Packed, format: Format, columns: int, inner: int) -> None:
        matrices.append(Matrix(format, columns, inner))
        init(self, format, columns, inner)

    monkeypatch.setattr(Packed, "__init__", noted)
    return matrices


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("quantization", [None, "gguf", "int8", "int4"])
@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES.keys())
def test_planned_bytes_are_packed_bytes(
    tmp_path: Path, mixture: Mapping[str, str], quantization: str | None, tied: bool, packed: list[Matrix]
) -> None:
    files = files_of(tmp_path, mixture, replace(WHOLE, tied_embeddings=tied))
    PagedModel(files, dtype="bfloat16", native=True, quantization=quantization)
    vectors = sum(2 * prod(entry.shape) for entry in files.tensors if len(entry.shape) == 1)
    assert weight_bytes(files, "bfloat16", quantization=quantization) == vectors + sum(each.bytes for each in packed)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_only_what_is_multiplied_by_is_rounded(
    tmp_path: Path, quantization: str, tied: bool, packed: list[Matrix]
) -> None:
    """A table that only the embedding reads keeps its values; one that is the head's as well is kept once."""
    files = files_of(tmp_path, {"": "BF16"}, replace(WHOLE, tied_embeddings=tied))
    PagedModel(files, dtype="bfloat16", native=True, quantization=quantization)
    rounded = Format[quantization.upper()]
    tables = [each.format for each in packed if each.columns == WHOLE.vocab_size]
    assert tables == ([rounded] if tied else [Format.BF16, rounded])
    assert {each.format for each in packed if each.columns != WHOLE.vocab_size} == {rounded}
