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


def paged_attention(
    queries: Tensor, pages: Tensor, blocks: Tensor, start: int, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """Attention of one sequence's tokens start, start + 1, ... over its pages, each up to itself.

    queries: [tokens, heads, dim]; returns the same, float32. blocks: of the first start + tokens tokens.
    window: tokens that a query sees, itself among them; 0: all. softcap: scores s become softcap x tanh(s / softcap).
    """
    kv_heads, dim = pages.shape[1], pages.shape[4]
    out = torch.empty(queries.shape)
    for row, query in enumerate(queries.float()):
        seen = start + row + 1
        first = max(0, seen - window) if window else 0
        keys, values = (side[:, first:] for side in context(pages, blocks, seen))
        scores = torch.einsum("kgd,ktd->kgt", query.view(kv_heads, -1, dim), keys) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        out[row] = torch.einsum("kgt,ktd->kgd", scores.softmax(-1), values).reshape(-1, dim)
    return out


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension."""
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * weight


def rope(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """states: [token, head, dim]; cosines, sines: [token, rotary], rotary at most dim; halves of it turn together."""
    rotary = cosines.shape[1]
    turning, still = states[..., :rotary], states[..., rotary:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cosines[:, None] + torch.cat((-second, first), dim=-1) * sines[:, None]
    return torch.cat((turned, still), dim=-1)


def gate(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) x up, of the two halves of a row; act is "silu" or "gelu_tanh"."""
    first, second = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return torch.nn.functional.silu(first) * second
    return torch.nn.functional.gelu(first, approximate="tanh") * second


def rounded_int8(weights: Tensor) -> Tensor:
    """Weights [columns, inner] as INT8 keeps them: whole multiples of a 127th of each column's largest."""
    scale = weights.abs().amax(1, keepdim=True) / 127
    return torch.where(scale > 0, (weights / scale).round() * scale, torch.zeros(()))


def rounded_int4(weights: Tensor) -> Tensor:
    """Weights [columns, inner] as INT4 keeps them: 16 steps between the least and the largest of each 32 values, scale
    and least rounded to half precision."""
    groups = weights.view(len(weights), -1, 32)
    least, most = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = ((most - least) / 15).half().float()
    least = least.half().float()
    codes = torch.where(scale > 0, ((groups - least) / scale).round(), torch.zeros(())).clamp(0, 15)
    return (codes * scale + least).view(weights.shape)


def rounded_activations(rows: Tensor) -> Tensor:
    """Activations [row, inner] as the integer products take them: 127ths of the largest of each 32 values."""
    groups = rows.view(len(rows), -1, 32)
    scale = groups.abs().amax(2, keepdim=True) / 127
    return torch.where(scale > 0, (groups / scale).round() * scale, torch.zeros(())).view(rows.shape)
