"""The gate of a feed-forward against its reference: both activations, far from zero too."""

import pytest
import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.gate import gate

NAN = float("nan")
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ACTIVATIONS = pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])


def _assert_right(gate_up: Tensor, activation: str) -> None:
    out = torch.full((len(gate_up), gate_up.shape[1] // 2), NAN, device=gate_up.device, dtype=gate_up.dtype)
    gate(gate_up, activation, out=out)
    tolerance = TOLERANCE[gate_up.dtype]
    torch.testing.assert_close(out, reference.gate(gate_up, activation), rtol=tolerance, atol=tolerance)


def _values(rows: int, inner: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn((rows, 2 * inner), generator=torch.Generator().manual_seed(inner)) * 3).to(device, dtype)


@ACTIVATIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (3, 96), (2, 1024), (2, 1025)])
def test_shapes(rows: int, inner: int, dtype: torch.dtype, activation: str, device: torch.device) -> None:
    _assert_right(_values(rows, inner, device, dtype), activation)


@ACTIVATIONS
def test_far_from_zero_there_is_neither_overflow_nor_nan(activation: str, device: torch.device) -> None:
    gates = torch.tensor([-1e20, -1000.0, -90.0, -20.0, -5.0, -1e-6, 0.0, 1e-6, 5.0, 20.0, 90.0, 1e4], device=device)
    gate_up = torch.cat((gates, torch.ones_like(gates)))[None]
    if activation == "gelu_tanh":
        gate_up[0, 0] = -1e10
    _assert_right(gate_up, activation)


@ACTIVATIONS
def test_slices_of_wider_rows(activation: str, device: torch.device) -> None:
    values = _values(3, 20, device)
    wide, results = torch.full((3, 64), NAN, device=device), torch.full((3, 64), NAN, device=device)
    wide[:, 8:48] = values
    gate(wide[:, 8:48], activation, out=results[:, 4:24])
    torch.testing.assert_close(results[:, 4:24], reference.gate(values, activation), rtol=1e-6, atol=1e-6)
    assert results[:, :4].isnan().all()
    assert results[:, 24:].isnan().all()


@ACTIVATIONS
@pytest.mark.parametrize("inner", [20, 1025])
def test_a_row_is_bit_equal_alone_and_in_company(inner: int, activation: str, device: torch.device) -> None:
    values = _values(5, inner, device)
    together = torch.full((5, inner), NAN, device=device)
    gate(values, activation, out=together)
    for some in (slice(3, 4), slice(1, 5)):
        part = torch.full_like(together[some], NAN)
        gate(values[some], activation, out=part)
        assert torch.equal(part, together[some])


def test_no_rows(device: torch.device) -> None:
    gate(torch.zeros(0, 8, device=device), "silu", out=torch.zeros(0, 4, device=device))


@pytest.mark.parametrize(
    ("gate_up", "activation", "out", "sentence"),
    [
        (torch.zeros(2, 8), "relu", torch.zeros(2, 4), "activation must be one of silu, gelu_tanh, not relu"),
        (torch.zeros(2, 7), "silu", torch.zeros(2, 4), r"gate_up must be \[row, 2 x inner\]"),
        (torch.zeros(2, 8), "silu", torch.zeros(2, 8), r"out must have shape \(2, 4\)"),
        (torch.zeros(2, 8), "silu", torch.zeros(2, 4).half(), "share one dtype"),
        (torch.zeros(8, 2).mT, "silu", torch.zeros(2, 4), "gate_up must be dense in its last dimension"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(gate_up: Tensor, activation: str, out: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gate(gate_up, activation, out=out)
