"""The specification of every kernel, in plain torch: what each must compute, whatever the device.

Written to be read, not to be fast. Shapes here are the kernels' shapes.

Pages are one layer of the KV pool: [num_blocks, kv_heads, 2 (K, V), block_tokens, dim] of float32, bfloat16 or float16.
Token t of a sequence stands in block table[t // block_tokens] at t % block_tokens.
"""

import torch
from torch import Tensor


def mixed_attention(
    queries: Tensor,
    pages: Tensor,
    table: Tensor,
    first_row: Tensor,
    positions: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: Tensor,
) -> None:
    """Attention of the query rows of many sequences, each over its sequence's context up to its own position.

    queries, out: [row, head, dim], heads a multiple of kv_heads; query heads of one group are neighbours.
    table: integers [sequence, max_blocks]. first_row: integers [sequence + 1]; sequence s has the rows from
    first_row[s] up to first_row[s + 1], which may be none. positions: integers [row], -1 for padding, which sees
    nothing and gives zeros, as does every row from the last of first_row on. window, softcap: see paged_attention.
    Page slots that none of a sequence's queries sees are never looked at, not even multiplied by zero, and neither are
    table entries of pages without other slots. Scores, softmax and sums are float32; `out` is rounded once, at the end,
    and written whole.
    """
    out[:] = 0
    bounds = first_row.tolist()
    for blocks, begin, end in zip(table, bounds[:-1], bounds[1:], strict=True):
        for row in range(begin, end):
            if (position := int(positions[row])) >= 0:
                one = queries[row : row + 1]
                attended = paged_attention(one, pages, blocks, position, scale=scale, window=window, softcap=softcap)
                out[row] = attended[0].to(out.dtype)


def context(pages: Tensor, blocks: Tensor, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values [kv_heads, length - first, dim], float32, of a sequence's tokens from `first` on."""
    size = pages.shape[3]
    tokens = torch.arange(first, length)
    keys, values = pages[blocks[tokens // size].long(), :, :, tokens % size].float().permute(2, 1, 0, 3)
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
        keys, values = context(pages, blocks, seen, first)
        scores = torch.einsum("kgd,ktd->kgt", query.view(kv_heads, -1, dim), keys) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        out[row] = torch.einsum("kgt,ktd->kgd", scores.softmax(-1), values).reshape(-1, dim)
    return out


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, float32 inside. weight: [dim], or [head, dim] for hidden of [row, head, dim].

    A weight of hidden's own dtype is a factor of the rounded norm, as in Llama; a float32 one beside 16-bit values is
    a factor before the one rounding, as in Gemma.
    """
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight.dtype == hidden.dtype:
        normed = normed.to(hidden.dtype)
    return (normed * weight).to(hidden.dtype)


def add_rms_norm(hidden: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, rounded, and its norm."""
    total = hidden + added
    return total, rms_norm(total, weight, eps)


def rms_norm_add(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual + norm of hidden, which is rounded before."""
    return residual + rms_norm(hidden, weight, eps)


def rope(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """states: [token, head, dim]; cosines, sines: [token, rotary], rotary at most dim; halves of it turn together.

    Float32 inside, rounded once.
    """
    rotary = cosines.shape[1]
    turning, still = states[..., :rotary].float(), states[..., rotary:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cosines[:, None] + torch.cat((-second, first), dim=-1) * sines[:, None]
    return torch.cat((turned.to(states.dtype), still), dim=-1)


def gate(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) x up, of the two halves of a row; act is "silu" or "gelu_tanh". Float32 inside, rounded once."""
    first, second = gate_up.float().chunk(2, dim=-1)
    if activation == "silu":
        opened = torch.nn.functional.silu(first)
    else:
        opened = torch.nn.functional.gelu(first, approximate="tanh")
    return (opened * second).to(gate_up.dtype)


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


def rounded_int8_groups(weights: Tensor) -> Tensor:
    """Weights [columns, inner] as INT8_GROUPS keeps them: whole multiples of a 127th of the largest of each 32 values,
    rounded to half precision."""
    groups = weights.view(len(weights), -1, 32)
    scale = (groups.abs().amax(2, keepdim=True) / 127).half().float()
    codes = torch.where(scale > 0, (groups / scale).round(), torch.zeros(())).clamp(-127, 127)
    return (codes * scale).view(weights.shape)


def rounded_activations(rows: Tensor) -> Tensor:
    """Activations [row, inner] as the integer products take them: 127ths of the largest of each 32 values."""
    groups = rows.view(len(rows), -1, 32)
    scale = groups.abs().amax(2, keepdim=True) / 127
    return torch.where(scale > 0, (groups / scale).round() * scale, torch.zeros(())).view(rows.shape)
