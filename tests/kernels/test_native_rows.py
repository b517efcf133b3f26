"""Native operations on one row at a time against the reference."""

import itertools
import math

import pytest
import torch
from kernels.instruction_sets import MAY_BUILD, instruction_set  # noqa: F401 - a fixture
from kernels.native_step import run

from headrace_kernels import reference
from headrace_kernels.native import Activation, Embed, Format, Gate, Norm
from headrace_kernels.packed_tensor import packed_tensor

pytestmark = MAY_BUILD

WIDTHS = [1, 7, 8, 16, 33, 576]
HELD = {
    Format.F32: lambda table: table,
    Format.BF16: lambda table: table.bfloat16().float(),
    Format.INT8: reference.rounded_int8,
    Format.INT4: reference.rounded_int4,
    Format.INT8_GROUPS: reference.rounded_int8_groups,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("add", [False, True])
def test_norm(width: int, add: bool) -> None:
    torch.manual_seed(width)
    rows, weight, out = torch.randn(5, width) * 3, torch.randn(width), torch.ones(5, width)
    expected = reference.rms_norm(rows, weight, 1e-5) + (1 if add else 0)
    run(Norm(rows.data_ptr(), weight.data_ptr(), out.data_ptr(), width, 1e-5, add), rows=5)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", Activation, ids=lambda activation: activation.name)
def test_gate(width: int, activation: Activation) -> None:
    torch.manual_seed(width)
    rows, out = torch.randn(6, 2 * width) * 4, torch.full((6, width), math.nan)
    rows[0, 0], rows[1, 0] = 60.0, -60.0
    run(Gate(rows.data_ptr(), out.data_ptr(), width, activation), rows=6, threads=3)
    torch.testing.assert_close(out, reference.gate(rows, activation.name.lower()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", Activation, ids=lambda activation: activation.name)
def test_gate_keeps_what_is_not_finite(activation: Activation) -> None:
    rows, out = torch.ones(1, 32), torch.zeros(1, 16)
    rows[0, 3] = math.nan
    run(Gate(rows.data_ptr(), out.data_ptr(), 16, activation), rows=1)
    assert out.isnan().sum() == 1
    assert out[0, 3].isnan()


@pytest.mark.parametrize("width", [32, 576])
@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_embed(format: Format, width: int) -> None:
    """A row of a packed matrix is what the matrix holds, to the bit; a part of the last tile is no column."""
    torch.manual_seed(0)
    table, out, ids = torch.randn(50, width), torch.full((5, width), math.nan), [49, 0, 7, 7, 16]
    packed = packed_tensor(table, format)
    run(Embed(packed.address, out.data_ptr(), width, 2.5, format), rows=5, ids=ids)
    assert torch.equal(out, HELD[format](table)[ids] * 2.5)


@pytest.mark.parametrize("format", [Format.F32, Format.BF16], ids=lambda format: format.name)
def test_embed_of_any_width(format: Format) -> None:
    table, out = torch.randn(20, 33), torch.full((2, 33), math.nan)
    packed = packed_tensor(table, format)
    run(Embed(packed.address, out.data_ptr(), 33, 1.0, format), rows=2, ids=[17, 2])
    assert torch.equal(out, HELD[format](table)[[17, 2]])


def test_operations_run_in_order_over_many_threads() -> None:
    """More threads than cores: each operation sees the one before it whole."""
    torch.manual_seed(0)
    first, weight = torch.randn(23, 64), torch.rand(64) + 0.5
    buffers = [first, *(torch.zeros(23, 64) for _ in range(40))]
    norms = [
        Norm(before.data_ptr(), weight.data_ptr(), after.data_ptr(), 64, 1e-5, False)
        for before, after in itertools.pairwise(buffers)
    ]
    expected = first
    for _ in norms:
        expected = reference.rms_norm(expected, weight, 1e-5)
    for threads in (1, 2, 5):
        for _ in range(20):
            buffers[-1].zero_()
            run(*norms, rows=23, threads=threads)
            torch.testing.assert_close(buffers[-1], expected, atol=1e-4, rtol=1e-4)
