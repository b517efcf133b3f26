"""Page pack and unpack against their reference and against the page memory that transfers use on CPUs."""

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.core.layout import KvLayout
from headrace.engine.page_memory import PageMemory
from headrace_kernels import reference
from headrace_kernels.page_pack import pack_pages, unpack_pages

LAYERS, BLOCKS = 3, 6
SCATTERED = [4, 0, 5, 2]


def _random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def _pool(device: torch.device, dtype: torch.dtype = torch.float32, dim: int = 32) -> Tensor:
    """Any bit pattern, NaNs with payloads among them."""
    return _random_bytes(LAYERS, BLOCKS, 2, 2, 16, dim * dtype.itemsize).view(dtype).to(device)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _unit(pool: Tensor, count: int) -> Tensor:
    return torch.full((LAYERS, count, *pool.shape[2:]), 7, dtype=pool.dtype, device=pool.device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
@pytest.mark.parametrize("blocks", [SCATTERED, [3], [5, 4, 3, 2, 1, 0]])
def test_pack_and_unpack_move_every_bit(dtype: torch.dtype, blocks: list[int], device: torch.device) -> None:
    pool, ids = _pool(device, dtype), torch.tensor(blocks, device=device)
    packed, expected = _unit(pool, len(blocks)), _unit(pool, len(blocks))
    pack_pages(pool, ids, packed)
    reference.pack_pages(pool, ids, expected)
    assert torch.equal(_bytes(packed), _bytes(expected))

    target, expected = _pool(device, dtype).zero_(), _pool(device, dtype).zero_()
    unpack_pages(packed, target, ids)
    reference.unpack_pages(packed, expected, ids)
    assert torch.equal(_bytes(target), _bytes(expected))


def test_blocks_that_are_not_named_keep_their_bytes(device: torch.device) -> None:
    pool = _pool(device)
    before = _bytes(pool).clone()
    unpack_pages(_unit(pool, 2), pool, torch.tensor([1, 3], device=device, dtype=torch.int32))
    others = [0, 2, 4, 5]
    assert torch.equal(_bytes(pool)[:, others], before[:, others])
    assert bool((pool[:, [1, 3]] == 7).all())


def test_pages_that_fill_no_whole_chunk(device: torch.device) -> None:
    pool = _pool(device, dim=20)
    unit, ids = _unit(pool, 4), torch.tensor(SCATTERED, device=device)
    pack_pages(pool, ids, unit)
    assert torch.equal(_bytes(unit), _bytes(pool[:, SCATTERED]))


def test_no_blocks_move_nothing(device: torch.device) -> None:
    pool = _pool(device)
    before = _bytes(pool).clone()
    none = torch.zeros(0, dtype=torch.int64, device=device)
    pack_pages(pool, none, _unit(pool, 0))
    unpack_pages(_unit(pool, 0), pool, none)
    assert torch.equal(_bytes(pool), before)


def test_a_unit_is_what_a_page_port_reads(device: torch.device) -> None:
    layout = KvLayout(layers=LAYERS, kv_heads=2, head_dim=8, block_tokens=16, dtype="bfloat16")
    memory = PageMemory(layout, BLOCKS)
    memory.bytes[:] = _random_bytes(*memory.bytes.shape).numpy()
    read = np.zeros((LAYERS, len(SCATTERED), layout.page_bytes), dtype=np.uint8)
    memory.read(SCATTERED, memoryview(read).cast("B"))

    pool, ids = torch.from_numpy(memory.bytes).to(device), torch.tensor(SCATTERED, device=device)
    unit = _unit(pool, len(SCATTERED))
    pack_pages(pool, ids, unit)
    assert np.array_equal(unit.cpu().numpy(), read)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pool": torch.zeros(LAYERS, BLOCKS)}, r"pool must be \[layers, num_blocks, ...page\]"),
        ({"pool": torch.zeros(LAYERS, 2 * BLOCKS, 8)[:, ::2]}, "pool must be contiguous"),
        ({"blocks": torch.zeros(1, 2, dtype=torch.int64)}, r"blocks must be \[count\]"),
        ({"blocks": torch.zeros(2)}, "blocks must be int32 or int64"),
        ({"unit": torch.zeros(LAYERS, 3, 8)}, "unit must have shape"),
        ({"unit": torch.zeros(LAYERS, 2, 8).int()}, "pool is torch.float32, but unit is torch.int32"),
        (
            {"pool": torch.zeros(LAYERS, BLOCKS, 3).byte(), "unit": torch.zeros(LAYERS, 2, 3).byte()},
            "A page of 3 bytes is not a multiple of 4",
        ),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(changes: dict[str, Tensor], sentence: str) -> None:
    arguments = {
        "pool": torch.zeros(LAYERS, BLOCKS, 8),
        "blocks": torch.tensor([0, 1]),
        "unit": torch.zeros(LAYERS, 2, 8),
    } | changes
    with pytest.raises(ValueError, match=sentence):
        pack_pages(**arguments)
    with pytest.raises(ValueError, match=sentence):
        unpack_pages(**arguments)
