"""Matrices packed out of rows as model files store them: held as they are, or rounded as their values would be.

The blocks' bytes and the values that they stand for come from the gguf package.
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from kernels.instruction_sets import MAY_BUILD, instruction_set  # noqa: F401 - a fixture
from kernels.native_step import run
from kernels.test_native_linear import linear
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.native import Embed, Format, Packed, Stored
from headrace_kernels.packed_tensor import packed_tensor

gguf = pytest.importorskip("gguf")
pytestmark = MAY_BUILD

SHAPES = [(1, 32), (7, 64), (16, 32), (33, 96), (130, 160)]
HELD = {Stored.Q4_0: Format.INT4, Stored.Q4_1: Format.INT4, Stored.Q8_0: Format.INT8_GROUPS}
Bytes = npt.NDArray[np.uint8]


def stored_rows(columns: int, inner: int, stored: Stored) -> tuple[Bytes, Tensor]:
    """Random bytes with reasonable factors, [columns, bytes of a row], and the values [columns, inner]."""
    noise = np.random.default_rng(columns * 1000 + inner + stored)
    kind = gguf.GGMLQuantizationType[stored.name]
    if stored.name.startswith("Q"):
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = noise.integers(0, 256, (columns * inner // block_values, block_bytes), dtype=np.uint8)
        factors = 2 if stored is Stored.Q4_1 else 1
        blocks[:, : 2 * factors] = noise.standard_normal((len(blocks), factors)).astype(np.float16).view(np.uint8)
        raw = blocks.reshape(columns, -1)
    else:
        raw = gguf.quants.quantize(noise.standard_normal((columns, inner)).astype(np.float32), kind)
        raw = np.ascontiguousarray(raw).view(np.uint8).reshape(columns, -1)
    return raw, torch.from_numpy(gguf.quants.dequantize(raw, kind).reshape(columns, inner).astype(np.float32))


def pack(raw: Bytes, stored: Stored, inner: int, format: Format, threads: int = 1) -> Packed:
    addresses = raw.ctypes.data + np.arange(len(raw)) * raw.strides[0]
    return Packed.of_rows(addresses, np.full(len(raw), stored, dtype=np.int32), inner, format, threads)


def rows_of(packed: Packed) -> Tensor:
    """Every row of the matrix, as an embedding reads it."""
    out = torch.full((packed.columns, packed.inner), math.nan)
    embed = Embed(packed.address, out.data_ptr(), packed.inner, 1.0, packed.format)
    run(embed, rows=packed.columns, ids=list(range(packed.columns)))
    return out


@pytest.mark.parametrize("stored", HELD, ids=lambda stored: stored.name)
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_blocks_are_held_as_they_are(columns: int, inner: int, stored: Stored) -> None:
    """Every code, minus 128 among those of Q8_0, and every factor, negative ones too."""
    raw, values = stored_rows(columns, inner, stored)
    assert torch.equal(rows_of(pack(raw, stored, inner, HELD[stored])), values)


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
@pytest.mark.parametrize("stored", Stored, ids=lambda stored: stored.name)
def test_what_is_not_held_is_rounded_as_its_values_are(stored: Stored, format: Format) -> None:
    raw, values = stored_rows(37, 96, stored)
    expected = values if HELD.get(stored) is format else rows_of(packed_tensor(values, format))
    assert torch.equal(rows_of(pack(raw, stored, 96, format)), expected)


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_rows_come_from_anywhere_in_any_encoding(format: Format) -> None:
    """Parts of one matrix, in an order of their own and between bytes of something else."""
    kinds = list(Stored)
    parts = [stored_rows(11, 64, stored) for stored in kinds]
    order = np.random.default_rng(5).permutation(11 * len(kinds))
    kept = [np.concatenate((np.full((11, 3), 255, np.uint8), raw), axis=1) for raw, _ in parts]
    addresses = np.concatenate([raw.ctypes.data + 3 + np.arange(11) * raw.strides[0] for raw in kept])
    stored = np.repeat(np.array(kinds, dtype=np.int32), 11)
    packed = Packed.of_rows(addresses[order], stored[order], 64, format)
    alone = [rows_of(pack(raw, kind, 64, format)) for (raw, _), kind in zip(parts, kinds, strict=True)]
    assert torch.equal(rows_of(packed), torch.cat(alone)[torch.from_numpy(order)])


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_threads_make_no_difference(format: Format) -> None:
    raw, _ = stored_rows(130, 96, Stored.Q4_1)
    expected = rows_of(pack(raw, Stored.Q4_1, 96, format))
    for threads in (2, 3, 20):
        assert torch.equal(rows_of(pack(raw, Stored.Q4_1, 96, format, threads)), expected)


@pytest.mark.parametrize("stored", HELD, ids=lambda stored: stored.name)
def test_products_with_blocks_equal_the_reference(stored: Stored) -> None:
    raw, values = stored_rows(70, 160, stored)
    rows = torch.randn(9, 160)
    expected = reference.rounded_activations(rows) @ values.T
    out = linear(rows, pack(raw, stored, 160, HELD[stored]))
    torch.testing.assert_close(out, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)
