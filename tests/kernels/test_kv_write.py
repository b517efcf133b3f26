"""KV write against its reference: the right rows written, and nothing else."""

import pytest
import torch
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.kv_write import kv_write

BLOCKS, KV_HEADS, BLOCK, DIM = 5, 3, 16, 32
POISON = -7.0


def _pages(device: torch.device, dtype: torch.dtype = torch.float32, dim: int = DIM) -> Tensor:
    return torch.full((BLOCKS, KV_HEADS, 2, BLOCK, dim), POISON, device=device, dtype=dtype)


def _rows(
    tokens: int, device: torch.device, dtype: torch.dtype = torch.float32, dim: int = DIM
) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(tokens)
    keys, values = torch.randn((2, tokens, KV_HEADS, dim), generator=noise).to(device, dtype)
    return keys, values


def _assert_same(keys: Tensor, values: Tensor, slots: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    places = torch.tensor(slots, dtype=dtype, device=keys.device)
    written, expected = (_pages(keys.device, keys.dtype, keys.shape[2]) for _ in range(2))
    kv_write(keys, values, written, places)
    reference.kv_write(keys, values, expected, places)
    assert torch.equal(written, expected)
    return written


@pytest.mark.parametrize("slots", [[0], [15, 16], [79], [33, 2, 64, 47, 48], list(range(16, 32))])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_at_and_across_page_boundaries(slots: list[int], dtype: torch.dtype, device: torch.device) -> None:
    _assert_same(*_rows(len(slots), device), slots, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    _assert_same(*_rows(3, device, dtype), [1, 40, 17])


def test_dims_that_are_no_power_of_two(device: torch.device) -> None:
    _assert_same(*_rows(2, device, dim=40), [15, 16])


def test_padded_rows_write_nothing(device: torch.device) -> None:
    keys, values = _rows(4, device)
    keys[1] = values[1] = float("nan")
    written = _assert_same(keys, values, [3, -1, 20, -1])
    assert int((written != POISON).any(dim=-1).sum()) == 2 * KV_HEADS * 2
    assert torch.equal(_assert_same(keys, values, [-1] * 4), _pages(device))


def test_no_tokens_write_nothing(device: torch.device) -> None:
    assert torch.equal(_assert_same(*_rows(0, device), []), _pages(device))


def test_slices_of_a_stacked_projection(device: torch.device) -> None:
    stacked = torch.randn((3, 10, DIM), generator=torch.Generator().manual_seed(3)).to(device)
    _assert_same(stacked[:, 4 : 4 + KV_HEADS], stacked[:, 7 : 7 + KV_HEADS], [31, 32, 0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"keys": torch.zeros(2, DIM)}, r"keys must be \[tokens, kv_heads, dim\]"),
        ({"values": torch.zeros(1, KV_HEADS, DIM)}, "values must have shape"),
        ({"pages": torch.zeros(BLOCKS, 1, 2, BLOCK, DIM)}, "pages must be"),
        ({"pages": torch.zeros(2 * BLOCKS, KV_HEADS, 2, BLOCK, DIM)[::2]}, "pages must be contiguous"),
        ({"slots": torch.zeros(2)}, "slots must be int32 or int64"),
        ({"slots": torch.zeros(3, dtype=torch.int64)}, r"slots must have shape \(2,\)"),
        ({"values": torch.zeros(2, KV_HEADS, DIM).half()}, "share one dtype"),
        ({"keys": torch.zeros(2, DIM, KV_HEADS).mT}, "keys must be dense in its last dimension"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(changes: dict[str, Tensor], sentence: str) -> None:
    cpu = torch.device("cpu")
    keys, values = _rows(2, cpu)
    arguments = {"keys": keys, "values": values, "pages": _pages(cpu), "slots": torch.tensor([0, 1])} | changes
    with pytest.raises(ValueError, match=sentence):
        kv_write(**arguments)
