"""What only a GPU can show: contexts of real lengths, and pools of more elements than 32 bits count."""

import pytest
import torch
from decode_case import Case, make_case

from headrace_kernels.kv_write import kv_write
from headrace_kernels.paged_decode import SPLIT_TOKENS

if not torch.cuda.is_available():
    pytest.skip("There is no CUDA device here.", allow_module_level=True)

LENGTHS = (1, 255, 256, 257, 1000, 0, 4096, 16)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("TRITON_INTERPRET=1 keeps the kernels off the GPU.")
    return device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_long_contexts(group: int, dtype: torch.dtype, cuda: torch.device) -> None:
    case = make_case(LENGTHS, cuda, group=group, dim=128, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(case.run(SPLIT_TOKENS), case.expected(), rtol=tolerance, atol=tolerance)


def test_long_answers_are_bit_equal_alone_and_in_a_batch(cuda: torch.device) -> None:
    case = make_case(LENGTHS, cuda, group=4, dim=128, dtype=torch.bfloat16)
    together = case.run(SPLIT_TOKENS)
    for row in (0, 3, 4, 6):
        assert torch.equal(case.alone(row).run(SPLIT_TOKENS)[0], together[row])


def test_pages_past_two_to_the_31_elements(cuda: torch.device) -> None:
    kv_heads, block, dim = 8, 16, 128
    blocks = 2**31 // (kv_heads * 2 * block * dim) + 2
    if torch.cuda.mem_get_info()[0] < blocks * kv_heads * 2 * block * dim * 2 + 2**30:
        pytest.skip("The GPU has less than 5 GiB free.")
    pages = torch.empty((blocks, kv_heads, 2, block, dim), dtype=torch.bfloat16, device=cuda)
    keys, values = torch.randn((2, 1, kv_heads, dim), device=cuda).bfloat16()
    kv_write(keys, values, pages, torch.tensor([(blocks - 1) * block], device=cuda))
    queries = torch.ones((1, kv_heads, dim), dtype=torch.bfloat16, device=cuda)
    table = torch.tensor([[blocks - 1]], device=cuda)
    out = Case(queries, pages, table, torch.ones(1, dtype=torch.int64, device=cuda)).run(SPLIT_TOKENS)
    assert torch.equal(out[0], values[0])
