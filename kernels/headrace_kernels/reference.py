"""The specification of every kernel, in plain torch: what each must compute, whatever the device.

Written to be read, not to be fast. Shapes here are the kernels' shapes.

Pages are one layer of the KV pool: [num_blocks, kv_heads, 2 (K, V), block_tokens, dim] of float32, bfloat16 or float16.
Token t of a sequence stands in block table[t // block_tokens] at t % block_tokens.
"""

import torch
from torch import Tensor


def paged_decode(queries: Tensor, pages: Tensor, table: Tensor, lengths: Tensor, *, scale: float, out: Tensor) -> None:
    """Attention of one query token a sequence over the first lengths[i] tokens of its context.

    queries, out: [batch, heads, dim], heads a multiple of kv_heads; query heads of one group are neighbours.
    table: integers [batch, max_blocks]; entries past a sequence's last block are never read.
    lengths: integers [batch]; 0 marks a padded row, whose output is zero and whose table row is never read.
    Page slots at or past a sequence's length are never looked at, not even multiplied by zero.
    Scores, softmax and sums are float32; `out` is rounded once, at the end, and written whole.
    """
    kv_heads, dim = pages.shape[1], pages.shape[4]
    group = queries.shape[1] // kv_heads
    for row, length in enumerate(lengths.tolist()):
        keys, values = context(pages, table[row], length)
        grouped = queries[row].float().view(kv_heads, group, dim)
        weights = torch.softmax(torch.einsum("kgd,ktd->kgt", grouped, keys) * scale, dim=-1)
        out[row] = torch.einsum("kgt,ktd->kgd", weights, values).reshape(-1, dim).to(out.dtype)


def context(pages: Tensor, blocks: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [kv_heads, length, dim], float32, of a sequence that stands in `blocks`."""
    size = pages.shape[3]
    tokens = [pages[int(blocks[token // size]), :, :, token % size] for token in range(length)]
    both = torch.stack(tokens) if tokens else pages.new_empty((0, *pages.shape[1:3], pages.shape[4]))
    keys, values = both.float().permute(2, 1, 0, 3)
    return keys, values


def kv_write(keys: Tensor, values: Tensor, pages: Tensor, slots: Tensor) -> None:
    """Put new keys and values [tokens, kv_heads, dim] into pages, changing nothing else.

    slots: integers [tokens]: block x block_tokens + place in the block, no two alike; a negative slot marks a padded
    row, which is not written.
    """
    size = pages.shape[3]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            pages[slot // size, :, 0, slot % size] = keys[token]
            pages[slot // size, :, 1, slot % size] = values[token]


def pack_pages(pool: Tensor, blocks: Tensor, unit: Tensor) -> None:
    """Copy whole blocks of all layers into a unit, bit by bit.

    pool: [layers, num_blocks, ...page]; unit: [layers, len(blocks), ...page], of any one dtype.
    blocks: integers [count], in the order of the unit.
    """
    for index, block in enumerate(blocks.tolist()):
        unit[:, index] = pool[:, block]


def unpack_pages(unit: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """The way back: set whole blocks of all layers from a unit. No two of `blocks` are alike."""
    for index, block in enumerate(blocks.tolist()):
        pool[:, block] = unit[:, index]
