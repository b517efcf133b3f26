"""Page pack and unpack: whole KV blocks of all layers to and from one contiguous unit, in the order of a PagePort.

Bytes are moved as integers, so every dtype and every bit pattern comes through unchanged.
`reference.pack_pages` and `reference.unpack_pages` are the specification.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from headrace_kernels.numerics import FP_FUSION
from headrace_kernels.requires import require, require_dense, require_indices, require_one_device

_WORD_BYTES = 4
_CHUNK_WORDS = 1024


def pack_pages(pool: Tensor, blocks: Tensor, unit: Tensor) -> None:
    """See reference.pack_pages. A page is a multiple of 4 bytes. Block ids are not checked against the pool."""
    _launch(pool, blocks, unit, into_pool=False)


def unpack_pages(unit: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """See reference.unpack_pages. A page is a multiple of 4 bytes. Block ids are not checked against the pool."""
    _launch(pool, blocks, unit, into_pool=True)


def _launch(pool: Tensor, blocks: Tensor, unit: Tensor, *, into_pool: bool) -> None:
    _check(pool, blocks, unit)
    layers, num_blocks = pool.shape[:2]
    count = blocks.shape[0]
    if count == 0:
        return
    pool_words, unit_words = (tensor.flatten(2).view(torch.int32) for tensor in (pool, unit))
    page_words = pool_words.shape[2]
    _copy_page[(layers * count, triton.cdiv(page_words, _CHUNK_WORDS))](
        pool_words,
        blocks,
        unit_words,
        num_blocks,
        count,
        PAGE_WORDS=page_words,
        CHUNK=_CHUNK_WORDS,
        INTO_POOL=into_pool,
        enable_fp_fusion=FP_FUSION,
    )


def _check(pool: Tensor, blocks: Tensor, unit: Tensor) -> None:
    require(pool.dim() >= 3, f"pool must be [layers, num_blocks, ...page], not {tuple(pool.shape)}.")
    require(blocks.dim() == 1, f"blocks must be [count], not {tuple(blocks.shape)}.")
    expected = (pool.shape[0], blocks.shape[0], *pool.shape[2:])
    require(tuple(unit.shape) == expected, f"unit must have shape {expected}, not {tuple(unit.shape)}.")
    require(pool.dtype == unit.dtype, f"pool is {pool.dtype}, but unit is {unit.dtype}.")
    page_bytes = pool.element_size() * pool[0, 0].numel() if pool.numel() else 0
    require(page_bytes % _WORD_BYTES == 0, f"A page of {page_bytes} bytes is not a multiple of {_WORD_BYTES}.")
    for name, tensor in (("pool", pool), ("blocks", blocks), ("unit", unit)):
        require_dense(name, tensor)
    require_indices("blocks", blocks)
    require_one_device(pool=pool, blocks=blocks, unit=unit)


@triton.jit(do_not_specialize=["num_blocks", "count"])
def _copy_page(
    pool, blocks, unit, num_blocks, count, PAGE_WORDS: tl.constexpr, CHUNK: tl.constexpr, INTO_POOL: tl.constexpr
):
    """One chunk of one layer of one block."""
    page = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    here = word < PAGE_WORDS
    block = tl.load(blocks + page % count).to(tl.int64)
    in_pool = pool + ((page // count) * num_blocks + block) * PAGE_WORDS + word
    in_unit = unit + page * PAGE_WORDS + word
    if INTO_POOL:
        tl.store(in_pool, tl.load(in_unit, mask=here), mask=here)
    else:
        tl.store(in_unit, tl.load(in_pool, mask=here), mask=here)
