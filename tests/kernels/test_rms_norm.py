"""RMSNorm and its additions against their reference: both orders of rounding, rows and heads, slices of tensors."""

import pytest
import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_add

EPS = 1e-5
NAN = float("nan")
# The interpreter cuts a float32 to a bfloat16 where a GPU rounds it.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
# The weight's: of the values' own dtype a factor of the rounded norm, as Llama's; float32 a factor before, as Gemma's.
WEIGHTS = pytest.mark.parametrize("wide", [False, True], ids=["rounded first", "rounded last"])


def _values(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@WEIGHTS
@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (5, 1)])
def test_rows(shape: tuple[int, int], wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    hidden = _values(*shape, device=device, dtype=dtype)
    weight = _values(shape[1], device=device, dtype=torch.float32 if wide else dtype, seed=2)
    out = torch.full_like(hidden, NAN)
    rms_norm(hidden, weight, EPS, out=out)
    _assert_close(out, reference.rms_norm(hidden, weight, EPS))


@WEIGHTS
def test_a_weight_a_head_over_a_slice_of_a_projection(wide: bool, device: torch.device) -> None:
    stacked = torch.full((3, 7, 40), NAN, device=device, dtype=torch.bfloat16)
    hidden = stacked[:, 1:6] = _values(3, 5, 40, device=device, dtype=torch.bfloat16)
    weight = _values(5, 40, device=device, dtype=torch.float32 if wide else torch.bfloat16)
    results = torch.full_like(stacked, NAN)
    rms_norm(stacked[:, 1:6], weight, EPS, out=results[:, 1:6])
    _assert_close(results[:, 1:6], reference.rms_norm(hidden, weight, EPS))
    assert results[:, [0, 6]].isnan().all()


@DTYPES
@WEIGHTS
def test_an_addition_before(wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    hidden, added = (_values(4, 72, device=device, dtype=dtype, seed=seed) for seed in (1, 2))
    weight = _values(72, device=device, dtype=torch.float32 if wide else dtype, seed=3)
    total, out = torch.full_like(hidden, NAN), torch.full_like(hidden, NAN)
    add_rms_norm(hidden, added, weight, EPS, total=total, out=out)
    expected_total, expected = reference.add_rms_norm(hidden, added, weight, EPS)
    _assert_close(total, expected_total)
    _assert_close(out, expected)


@DTYPES
@WEIGHTS
def test_an_addition_after(wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    hidden, residual = (_values(4, 72, device=device, dtype=dtype, seed=seed) for seed in (1, 2))
    weight = _values(72, device=device, dtype=torch.float32 if wide else dtype, seed=3)
    out = torch.full_like(hidden, NAN)
    rms_norm_add(hidden, residual, weight, EPS, out=out)
    _assert_close(out, reference.rms_norm_add(hidden, residual, weight, EPS))


def test_sums_in_place(device: torch.device) -> None:
    hidden, added = (_values(2, 24, device=device, seed=seed) for seed in (1, 2))
    weight, out = _values(24, device=device, seed=3), torch.full_like(hidden, NAN)
    total, expected = reference.add_rms_norm(hidden, added, weight, EPS)
    add_rms_norm(hidden, added, weight, EPS, total=hidden, out=out)
    assert torch.equal(hidden, total)
    _assert_close(out, expected)


def test_the_order_of_rounding_is_felt(device: torch.device) -> None:
    """Else one order could stand for both, and no test would see it."""
    hidden = _values(8, 64, device=device, dtype=torch.float16)
    weight = _values(64, device=device, dtype=torch.float16, seed=2)
    first, last = torch.empty_like(hidden), torch.empty_like(hidden)
    rms_norm(hidden, weight, EPS, out=first)
    rms_norm(hidden, weight.float(), EPS, out=last)
    assert torch.equal(first, reference.rms_norm(hidden, weight, EPS))
    assert torch.equal(last, reference.rms_norm(hidden, weight.float(), EPS))
    assert not torch.equal(first, last)


@pytest.mark.parametrize("kernel", ["rms_norm", "add_rms_norm", "rms_norm_add"])
def test_a_row_is_bit_equal_alone_and_in_company(kernel: str, device: torch.device) -> None:
    hidden, other = (_values(6, 100, device=device, seed=seed) for seed in (1, 3))
    weight = _values(100, device=device, seed=2)

    def run(rows: slice) -> Tensor:
        out, total = torch.full_like(hidden[rows], NAN), torch.full_like(hidden[rows], NAN)
        if kernel == "rms_norm":
            rms_norm(hidden[rows], weight, EPS, out=out)
        elif kernel == "add_rms_norm":
            add_rms_norm(hidden[rows], other[rows], weight, EPS, total=total, out=out)
        else:
            rms_norm_add(hidden[rows], other[rows], weight, EPS, out=out)
        return out

    together = run(slice(0, 6))
    for some in (slice(4, 5), slice(1, 6)):
        assert torch.equal(run(some), together[some])


def test_zeros_stay_zero_and_no_rows_are_none(device: torch.device) -> None:
    weight = torch.ones(16, device=device)
    out = torch.full((2, 16), NAN, device=device)
    rms_norm(torch.zeros(2, 16, device=device), weight, EPS, out=out)
    assert not out.any()
    rms_norm(out[:0], weight, EPS, out=out[:0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": torch.zeros(8)}, r"hidden must be \[row, dim\] or \[row, head, dim\]"),
        ({"weight": torch.zeros(7)}, r"weight must be \(8,\)"),
        ({"weight": torch.zeros(8).double()}, "weight must be torch.float32 or torch.float32"),
        ({"out": torch.zeros(3, 8)}, r"out must have shape \(2, 8\)"),
        ({"out": torch.zeros(2, 8).half()}, "share one dtype"),
        ({"hidden": torch.zeros(8, 2).mT}, "hidden must be dense in its last dimension"),
        ({"weight": torch.zeros(8, device="meta")}, "one device"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(changes: dict[str, Tensor], sentence: str) -> None:
    given = {"hidden": torch.zeros(2, 8), "weight": torch.zeros(8), "out": torch.zeros(2, 8)} | changes
    with pytest.raises(ValueError, match=sentence):
        rms_norm(given["hidden"], given["weight"], EPS, out=given["out"])
