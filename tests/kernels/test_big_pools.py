"""Pools of more elements than 32 bits count: their last page is written, read, packed and unpacked."""

import numpy as np
import pytest
import torch
from attention_case import NAN, Case
from torch import Tensor

from headrace_kernels.kv_write import kv_write
from headrace_kernels.page_pack import pack_pages, unpack_pages

KV_HEADS, BLOCK, DIM = 8, 16, 128
BLOCKS = 2**31 // (KV_HEADS * 2 * BLOCK * DIM) + 2
LAST = BLOCKS - 1


@pytest.fixture
def pages(device: torch.device) -> Tensor:
    """On a CPU of memory that takes no room until it is touched."""
    shape = (BLOCKS, KV_HEADS, 2, BLOCK, DIM)
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, dtype=np.float16))
    if torch.cuda.mem_get_info()[0] < 2**33:
        pytest.skip("The GPU has less than 8 GiB free.")
    return torch.zeros(shape, dtype=torch.float16, device=device)


def test_attention_over_what_was_written(pages: Tensor, device: torch.device) -> None:
    keys, values = torch.randn((2, 1, KV_HEADS, DIM), generator=torch.Generator().manual_seed(3)).to(device).half()
    pages[LAST] = NAN
    kv_write(keys, values, pages, torch.tensor([LAST * BLOCK], device=device))
    table, first_row = torch.tensor([[LAST]], device=device), torch.tensor([0, 1], device=device)
    queries, positions = torch.ones_like(keys), torch.zeros(1, dtype=torch.int64, device=device)
    case = Case(((0, 1),), queries, pages, table, first_row, positions)
    assert torch.equal(case.run()[0], values[0])


def test_pages_to_and_fro(pages: Tensor, device: torch.device) -> None:
    pages[LAST] = torch.randn(pages.shape[1:], generator=torch.Generator().manual_seed(4)).to(device)
    unit = torch.empty_like(pages[None, :1])
    pack_pages(pages[None], torch.tensor([LAST], device=device), unit)
    assert torch.equal(unit[0, 0], pages[LAST])
    unpack_pages(unit * 2, pages[None], torch.tensor([LAST], device=device))
    assert torch.equal(pages[LAST], unit[0, 0] * 2)
