"""What only a GPU can show: contexts of real lengths, with the compiler's own rounding."""

import pytest
import torch
from attention_case import ALL_SPLITS_AT_ONCE, SPLIT_AFTER_SPLIT, decoding, make_case

from headrace_kernels.mixed_attention import DECODE_ROWS, PREFILL_ROWS, SPLIT_TOKENS

if not torch.cuda.is_available():
    pytest.skip("There is no CUDA device here.", allow_module_level=True)

SPANS = (*decoding(1, 255, 256, 257, 1000, 0, 4096, 16), (300, 130), (0, 64))
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PASSES = pytest.mark.parametrize("scratch_bytes", [ALL_SPLITS_AT_ONCE, SPLIT_AFTER_SPLIT], ids=["parts", "whole"])


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("TRITON_INTERPRET=1 keeps the kernels off the GPU.")
    return device


@PASSES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("gemma", [False, True])
def test_long_contexts(group: int, dtype: torch.dtype, gemma: bool, scratch_bytes: int, cuda: torch.device) -> None:
    dim, window, softcap = (256, 200, 50.0) if gemma else (128, 0, 0.0)
    case = make_case(SPANS, cuda, group=group, dim=dim, dtype=dtype, window=window, softcap=softcap, padding=5)
    tolerance = TOLERANCE[dtype]
    for tile_rows in (DECODE_ROWS, PREFILL_ROWS):
        out = case.run(SPLIT_TOKENS, scratch_bytes=scratch_bytes, tile_rows=tile_rows)
        torch.testing.assert_close(out, case.expected(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_answers_are_bit_equal_alone_in_chunks_and_with_either_pass(
    dtype: torch.dtype, cuda: torch.device
) -> None:
    case = make_case(SPANS, cuda, group=4, dim=128, dtype=dtype)
    together = case.run(SPLIT_TOKENS)
    assert torch.equal(case.run(SPLIT_TOKENS, scratch_bytes=SPLIT_AFTER_SPLIT), together)
    for index, begin, end in ((0, 0, 1), (3, 0, 1), (6, 0, 1), (8, 0, 130), (8, 17, 18), (8, 40, 100), (9, 5, 64)):
        assert torch.equal(case.part(index, begin, end).run(SPLIT_TOKENS), together[case.rows(index)][begin:end])
