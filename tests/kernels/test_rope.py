"""The rotary embedding against its reference: whole heads and parts of them, slices of a projection."""

import pytest
import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.rope import rope

NAN = float("nan")
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def _case(
    shape: tuple[int, int, int], rotary: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """States of [token, head, dim] and tables whose halves differ, as those of no model do: a kernel must read both."""
    tokens, heads, _ = shape
    noise = torch.Generator().manual_seed(tokens + heads)
    shapes = (shape, (tokens, rotary), (tokens, rotary))
    states, cosines, sines = (torch.randn(each, generator=noise).to(device, dtype) for each in shapes)
    return states, cosines, sines


def _assert_right(states: Tensor, cosines: Tensor, sines: Tensor) -> None:
    out = torch.full_like(states, NAN)
    rope(states, cosines, sines, out=out)
    tolerance = TOLERANCE[states.dtype]
    torch.testing.assert_close(out, reference.rope(states, cosines, sines), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [1, 3, 8, 11])
@pytest.mark.parametrize(("dim", "rotary"), [(32, 32), (32, 8), (40, 24), (80, 80), (16, 2), (24, 22)])
def test_shapes(heads: int, dim: int, rotary: int, device: torch.device) -> None:
    _assert_right(*_case((2, heads, dim), rotary, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    _assert_right(*_case((5, 4, 32), 24, device, dtype))


def test_what_does_not_turn_is_copied_bit_by_bit(device: torch.device) -> None:
    states, cosines, sines = _case((3, 2, 32), 8, device, torch.bfloat16)
    states[1, 1, 20] = NAN
    out = torch.zeros_like(states)
    rope(states, cosines, sines, out=out)
    assert torch.equal(out[..., 8:].view(torch.int16), states[..., 8:].view(torch.int16))


def test_a_slice_of_a_projection_into_a_slice(device: torch.device) -> None:
    states, cosines, sines = _case((3, 3, 16), 16, device)
    stacked, results = torch.full((3, 6, 16), NAN, device=device), torch.full((3, 6, 16), NAN, device=device)
    stacked[:, 2:5] = states
    rope(stacked[:, 2:5], cosines, sines, out=results[:, 2:5])
    torch.testing.assert_close(results[:, 2:5], reference.rope(states, cosines, sines))
    assert results[:, [0, 1, 5]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_bit_equal_alone_and_in_company(dtype: torch.dtype, device: torch.device) -> None:
    states, cosines, sines = _case((7, 3, 40), 24, device, dtype)
    together = torch.full_like(states, NAN)
    rope(states, cosines, sines, out=together)
    for some in (slice(4, 5), slice(2, 7)):
        part = torch.full_like(states[some], NAN)
        rope(states[some], cosines[some], sines[some], out=part)
        assert torch.equal(part, together[some])


def test_in_place_and_no_tokens(device: torch.device) -> None:
    states, cosines, sines = _case((2, 3, 16), 12, device)
    expected = reference.rope(states, cosines, sines)
    rope(states, cosines, sines, out=states)
    torch.testing.assert_close(states, expected)
    rope(states[:0], cosines[:0], sines[:0], out=states[:0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"states": torch.zeros(2, 8)}, r"states must be \[token, head, dim\]"),
        ({"cosines": torch.zeros(2, 10)}, r"cosines must be \[2, an even number up to 8\]"),
        ({"cosines": torch.zeros(3, 8)}, r"cosines must be \[2, an even number up to 8\]"),
        ({"sines": torch.zeros(2, 6)}, r"sines must have shape \(2, 8\)"),
        ({"out": torch.zeros(2, 1, 8)}, r"out must have shape \(2, 3, 8\)"),
        ({"sines": torch.zeros(2, 8).half()}, "share one dtype"),
        ({"states": torch.zeros(2, 8, 3).mT}, "states must be dense in its last dimension"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(changes: dict[str, Tensor], sentence: str) -> None:
    states = torch.zeros(2, 3, 8)
    given = {"states": states, "cosines": torch.zeros(2, 8), "sines": torch.zeros(2, 8), "out": states} | changes
    with pytest.raises(ValueError, match=sentence):
        rope(**given)
