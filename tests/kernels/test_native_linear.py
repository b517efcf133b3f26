"""Native products of matrices against the reference: every format, shapes that fill no tile, any number of rows."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernels.instruction_sets import MAY_BUILD, instruction_set  # noqa: F401 - a fixture
from kernels.native_step import run
from torch import Tensor

from headrace_kernels import native, reference
from headrace_kernels.native import Format, Head, Linear, Packed
from headrace_kernels.packed_tensor import packed_tensor

pytestmark = MAY_BUILD

SHAPES = [(1, 32), (7, 64), (16, 32), (33, 96), (64, 576), (130, 160)]
ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 31, 97]


def halved(rows: Tensor) -> Tensor:
    """Activations as products with BF16 take them: rounded where an instruction multiplies bfloat16."""
    return rows.bfloat16().float() if "BF16" in (native.instruction_set() or "") else rows


# The reference rounds what the format rounds; what is left is the order of float32 sums.
KEPT = {
    Format.F32: (lambda weights: weights, lambda rows: rows),
    Format.BF16: (lambda weights: weights.bfloat16().float(), halved),
    Format.INT8: (reference.rounded_int8, reference.rounded_activations),
    Format.INT4: (reference.rounded_int4, reference.rounded_activations),
    Format.INT8_GROUPS: (reference.rounded_int8_groups, reference.rounded_activations),
}


def linear(
    rows: Tensor, packed: Packed, bias: Tensor | None = None, out: Tensor | None = None, threads: int = 2
) -> Tensor:
    room = native.scratch(packed.format, max(len(rows), 1), packed.inner)
    to = torch.full((len(rows), packed.columns), math.nan) if out is None else out
    operation = Linear(
        in_=rows.data_ptr(),
        weights=packed.address,
        bias=None if bias is None else bias.data_ptr(),
        out=to.data_ptr(),
        scratch=None if room is None else room.ctypes.data,
        columns=packed.columns,
        inner=packed.inner,
        format=packed.format,
        add=out is not None,
    )
    run(operation, rows=len(rows), threads=threads)
    return to


def _case(columns: int, inner: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(columns * 1000 + inner)
    return torch.randn(columns, inner), torch.randn(rows, inner), torch.randn(columns)


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_products_equal_the_reference(columns: int, inner: int, format: Format) -> None:
    weights, rows, bias = _case(columns, inner, max(ROWS))
    keep_weights, keep_rows = KEPT[format]
    expected = keep_rows(rows) @ keep_weights(weights).T
    packed = packed_tensor(weights, format)
    scale = float(expected.abs().max())
    torch.testing.assert_close(linear(rows, packed), expected, atol=2e-5 * scale, rtol=0)
    torch.testing.assert_close(linear(rows, packed, bias), expected + bias, atol=2e-5 * scale, rtol=0)
    added = linear(rows, packed, bias, torch.ones(len(rows), columns))
    torch.testing.assert_close(added, expected + bias + 1, atol=2e-5 * scale, rtol=0)


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_a_row_is_the_same_bits_whatever_it_is_computed_with(columns: int, inner: int, format: Format) -> None:
    weights, rows, bias = _case(columns, inner, max(ROWS))
    packed = packed_tensor(weights, format)
    expected = linear(rows, packed, bias)
    for count in ROWS:
        for threads in (1, 2, 3):
            assert torch.equal(linear(rows[:count].clone(), packed, bias, threads=threads), expected[:count])
            last = rows[-count:].clone()
            assert torch.equal(linear(last, packed, bias, threads=threads), expected[-count:])


@pytest.mark.parametrize("format", [Format.F32, Format.BF16], ids=lambda format: format.name)
@pytest.mark.parametrize("inner", [1, 7, 33, 65])
def test_rows_may_be_of_any_length(inner: int, format: Format) -> None:
    weights, rows, bias = _case(40, inner, 14)
    keep_weights, keep_rows = KEPT[format]
    expected = keep_rows(rows) @ keep_weights(weights).T + bias
    packed = packed_tensor(weights, format)
    torch.testing.assert_close(linear(rows, packed, bias), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(linear(rows[5:6].clone(), packed, bias), linear(rows, packed, bias)[5:6])


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_many_tiles_are_each_computed_once(format: Format) -> None:
    """As many as a thread takes several of at a time, and more than it takes apart at once."""
    weights, rows, bias = _case(1601, 576, 20)
    keep_weights, keep_rows = KEPT[format]
    packed = packed_tensor(weights, format)
    for count in (1, 5, 20):
        expected = keep_rows(rows[:count]) @ keep_weights(weights).T + bias
        each = [linear(rows[:count].clone(), packed, bias, threads=threads) for threads in (1, 2, 3)]
        torch.testing.assert_close(each[0], expected, atol=2e-5 * float(expected.abs().max()), rtol=0)
        assert all(torch.equal(one, each[0]) for one in each)


@pytest.mark.parametrize("inner", [8192, 8224, 16384, 16416])
def test_tiles_too_long_to_be_taken_apart_give_the_same_bits(inner: int) -> None:
    weights, rows, _ = _case(20, inner, 13)
    packed = packed_tensor(weights, Format.INT4)
    together = linear(rows, packed)
    for row in (0, 5, 12):
        assert torch.equal(linear(rows[row : row + 1].clone(), packed)[0], together[row])


def test_callers_of_one_process_take_turns() -> None:
    """Two engines may live in one process: they share the team of threads, of whatever size each wants."""
    cases = [_case(64, 576, 7), _case(130, 160, 13)]
    packed = [(packed_tensor(weights, Format.INT8), rows, bias) for weights, rows, bias in cases]
    expected = [linear(rows, matrix, bias) for matrix, rows, bias in packed]

    def call(index: int) -> bool:
        matrix, rows, bias = packed[index]
        return all(
            torch.equal(linear(rows, matrix, bias, threads=2 + index * (turn % 8 == 0)), expected[index])
            for turn in range(200)
        )

    with ThreadPoolExecutor(2) as callers:
        assert list(callers.map(call, range(2))) == [True, True]


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
@pytest.mark.parametrize("count", [5, 17])
def test_what_is_not_finite_stays_in_its_row(format: Format, count: int) -> None:
    weights, rows, _ = _case(40, 64, count)
    packed = packed_tensor(weights, format)
    expected = linear(rows, packed)
    others = [row for row in range(count) if row != 2]
    for poison in (math.nan, math.inf, -math.inf):
        poisoned = rows.clone()
        poisoned[2, 17] = poison
        out = linear(poisoned, packed)
        assert not out[2].isfinite().any()
        assert torch.equal(out[others], expected[others])


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
@pytest.mark.parametrize("rows", [3, 13])
def test_zeros_are_zero(format: Format, rows: int) -> None:
    packed, zeros = packed_tensor(torch.zeros(20, 32), format), torch.zeros(rows, 20)
    assert torch.equal(linear(torch.randn(rows, 32), packed), zeros)
    assert torch.equal(linear(torch.zeros(rows, 32), packed_tensor(torch.randn(20, 32), format)), zeros)


@pytest.mark.parametrize("format", [Format.INT8, Format.INT4, Format.INT8_GROUPS], ids=lambda format: format.name)
def test_rows_that_fill_no_group_are_refused(format: Format) -> None:
    with pytest.raises(ValueError, match="rows of 40 values"):
        packed_tensor(torch.randn(8, 40), format)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("wanted", [[4, 0, 5], [*range(14, 0, -1)]], ids=["few", "many"])
@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_head_equals_the_reference(format: Format, wanted: list[int], softcap: float) -> None:
    weights, rows, _ = _case(70, 64, 15)
    norm, count = torch.rand(64) + 0.5, len(wanted)
    keep_weights, keep_rows = KEPT[format]
    packed, normed, logits = packed_tensor(weights, format), torch.empty(count, 64), torch.full((count, 70), math.nan)
    room = native.scratch(format, count, 64)
    head = Head(
        *(
            rows.data_ptr(),
            norm.data_ptr(),
            normed.data_ptr(),
            packed.address,
            None if room is None else room.ctypes.data,
        ),
        *(64, 70, 1e-5, softcap, format),
    )
    run(head, rows=15, head_rows=wanted, logits=logits)
    torch.testing.assert_close(normed, reference.rms_norm(rows[wanted], norm, 1e-5), atol=1e-5, rtol=1e-5)
    # Out of the norm as it came: where rounding decides between two codes of an activation, its last bit tips it.
    expected = keep_rows(normed) @ keep_weights(weights).T
    tolerance = 2e-5 * float(expected.abs().max())
    expected = softcap * torch.tanh(expected / softcap) if softcap else expected
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)
