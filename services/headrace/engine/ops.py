"""Tensor operations of a model's forward pass: the one door to the kernels.

Owns the choice: Triton's kernels where a tensor lies on a GPU, torch elsewhere. Matrix products are torch's on both. It
knows no weights, sequences or schedule. `headrace_kernels.reference` says what each operation computes.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from headrace.core.layout import KvLayout
from headrace.engine import gathered_attention, tiled_attention
from headrace.engine.activations import ACTIVATIONS
from headrace.engine.models.attention import AttentionSpec


@dataclass(frozen=True, slots=True)
class Context:
    """One attention call of a step, the same for every layer: `batch` sequences of `rows` query tokens each.

    first_token: the batch's first row among the step's tokens. table: [batch, blocks]; lengths: [batch] tokens.
    gather: rows of PagedKv.heads that hold the context, [K,V][sequence][kv head][page].
    positions: [batch, rows], of the queries. Layers of the same window share a mask, made for the first of them.
    """

    first_token: int
    batch: int
    rows: int
    table: Tensor
    lengths: Tensor
    gather: Tensor
    positions: Tensor
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _stale: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def stale(self, tokens: int) -> tuple[Tensor, Tensor]:
        """(sequence, token) of what an earlier owner may have left in the pages of `table`, which hold `tokens` tokens.

        It stands in a context's last page. Padding repeats the first one, which is full unless it is the last.
        """
        if not self._stale:
            size, lengths = tokens // self.table.shape[1], self.lengths[:, None]
            places = torch.arange(tokens, device=self.lengths.device)
            in_last_page = (places < (lengths + size - 1) // size * size) | (lengths < size)
            sequences, behind = ((places >= lengths) & in_last_page).nonzero(as_tuple=True)
            self._stale.append((sequences, behind))
        return self._stale[0]

    def mask(self, tokens: int, window: int, group: int) -> Tensor:
        """[batch, 1, group x rows, tokens], True where a query may look; of one row a sequence 1 for group x rows.

        tokens: what the pages of `table` hold. group: query heads of a KV head.
        """
        key = (window, 1 if self.rows == 1 else group)
        if key not in self._masks:
            self._masks[key] = self._mask(tokens, window).repeat(1, 1, key[1], 1)
        return self._masks[key]

    def _mask(self, tokens: int, window: int) -> Tensor:
        places, last = torch.arange(tokens, device=self.positions.device), self.positions[:, None, :, None]
        seen = places <= last
        return seen & (places > last - window) if window else seen


@dataclass(frozen=True, slots=True)
class Launch:
    """One attention call for all of a step, the same for every layer.

    table: [sequence, blocks]. first_row: [sequence + 1], of each among the step's rows, and the row behind the last.
    positions: [row], -1 for padding. several: whether a sequence may have more than one row.
    """

    table: Tensor
    first_row: Tensor
    positions: Tensor
    several: bool


class Attending(Protocol):
    """What a step knows of its attention, made when it is first asked for: torch goes by contexts, Triton by launch.

    rows: of the step, those of padding included.
    """

    @property
    def rows(self) -> int: ...

    @property
    def contexts(self) -> list[Context]: ...

    @property
    def launch(self) -> Launch: ...


@dataclass(frozen=True, slots=True)
class Slots:
    """Where a step's tokens are written, no two alike.

    tokens: [token], block x block_tokens + place in the block. rows: the same as rows of PagedKv.rows,
    [token x kv head x 2].
    """

    tokens: Tensor
    rows: Tensor


class PagedKv:
    """The KV pages of all layers as tensors over the page memory.

    `pages[layer]` is [block, kv head, K/V, token, dim] for kernels, `heads[layer]` is
    [block x kv head x 2, token x dim] for gathering, `rows[layer]` is [block x kv head x 2 x token, dim] for
    writing single tokens.
    """

    def __init__(self, memory: Tensor, layout: KvLayout, dtype: torch.dtype, *, batch_invariant: bool = False) -> None:
        """memory: uint8 of shape [layers, blocks, page_bytes]. batch_invariant: how `attention` reads the pages."""
        values = memory.view(dtype)
        self.layout = layout
        self.batch_invariant = batch_invariant
        self.pages = values.view(layout.layers, -1, layout.kv_heads, 2, layout.block_tokens, layout.head_dim)
        self.heads = values.view(layout.layers, -1, layout.block_tokens * layout.head_dim)
        self.rows = values.view(layout.layers, -1, layout.head_dim)

    @property
    def device(self) -> torch.device:
        return self.pages.device

    @property
    def page_multiple(self) -> int:
        """What the number of pages of a context must be a multiple of."""
        size = self.layout.block_tokens
        return math.lcm(tiled_attention.TILE_TOKENS, size) // size if self.batch_invariant else 1

    def write(self, layer: int, slots: Slots, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [token, kv head, dim] into `slots`."""
        if picks_triton(keys):
            from headrace_kernels.kv_write import kv_write  # noqa: PLC0415 - absent on machines without a GPU

            kv_write(keys, values, self.pages[layer], slots.tokens)
        else:
            both = torch.stack((keys, values), dim=2)
            self.rows[layer].index_copy_(0, slots.rows, both.view(-1, self.layout.head_dim))


def picks_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels work on `tensor`, or torch."""
    return tensor.is_cuda


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of [row, dim] or [row, head, dim] over the last dimension. weight: [dim] or [head, dim]; one of hidden's own
    dtype is a factor of the rounded norm, a float32 one beside 16-bit values a factor before the rounding."""
    if picks_triton(hidden):
        from headrace_kernels import rms_norm as kernels  # noqa: PLC0415 - absent on machines without a GPU

        out = hidden.new_empty(hidden.shape)
        kernels.rms_norm(hidden, weight, eps, out=out)
        return out
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(hidden.dtype) if weight.dtype == hidden.dtype else (normed * weight).to(hidden.dtype)


def add_rms_norm(hidden: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """hidden + added, both [row, dim], and the norm of that."""
    if picks_triton(hidden):
        from headrace_kernels import rms_norm as kernels  # noqa: PLC0415 - absent on machines without a GPU

        total, out = hidden.new_empty(hidden.shape), hidden.new_empty(hidden.shape)
        kernels.add_rms_norm(hidden, added, weight, eps, total=total, out=out)
        return total, out
    total = hidden + added
    return total, rms_norm(total, weight, eps)


def rms_norm_add(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual + the norm of hidden, both [row, dim]."""
    if picks_triton(hidden):
        from headrace_kernels import rms_norm as kernels  # noqa: PLC0415 - absent on machines without a GPU

        out = hidden.new_empty(hidden.shape)
        kernels.rms_norm_add(hidden, residual, weight, eps, out=out)
        return out
    return residual + rms_norm(hidden, weight, eps)


def rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """states: [token, head, dim]; cosines, sines: [token, 1, rotary]. The dimensions beyond rotary stay as they are."""
    if picks_triton(states):
        from headrace_kernels.rope import rope  # noqa: PLC0415 - absent on machines without a GPU

        out = states.new_empty(states.shape)
        rope(states, cosines.squeeze(1), sines.squeeze(1), out=out)
        return out
    turning, still = states[..., : cosines.shape[-1]], states[..., cosines.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cosines + torch.cat((-second, first), dim=-1) * sines
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned


def gate(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) x up, of the two halves of [row, 2 x inner]. activation: a key of ACTIVATIONS."""
    if picks_triton(gate_up):
        from headrace_kernels import gate as kernels  # noqa: PLC0415 - absent on machines without a GPU

        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        kernels.gate(gate_up, activation, out=out)
        return out
    opening, up = gate_up.chunk(2, dim=-1)
    return ACTIVATIONS[activation](opening) * up


def attention(queries: Tensor, kv: PagedKv, layer: int, spec: AttentionSpec, step: Attending) -> Tensor:
    """Grouped-query attention of a step's tokens over their paged contexts.

    queries: [token, head, dim]. Returns [step.rows, head x dim]; rows past the last token are zero.
    """
    if picks_triton(queries):
        return _attend_in_one_launch(queries, kv, layer, spec, step)
    out = queries.new_zeros(step.rows, queries.shape[1] * queries.shape[2])
    for context in step.contexts:
        these = slice(context.first_token, context.first_token + context.batch * context.rows)
        out[these] = gathered_attention.attend(queries[these], kv, layer, spec, context)
    return out


def _attend_in_one_launch(queries: Tensor, kv: PagedKv, layer: int, spec: AttentionSpec, step: Attending) -> Tensor:
    from headrace_kernels import mixed_attention as kernels  # noqa: PLC0415 - absent on machines without a GPU

    launch, tokens = step.launch, len(queries)
    out = queries.new_empty(step.rows, *queries.shape[1:])
    out[tokens:] = 0
    # A row's bits may depend on how many share its matrix product, so in that mode it is always the same number.
    many = launch.several and not kv.batch_invariant
    kernels.mixed_attention(
        queries,
        kv.pages[layer],
        launch.table,
        launch.first_row,
        launch.positions[:tokens],
        scale=spec.scale,
        window=spec.window,
        softcap=spec.softcap,
        out=out[:tokens],
        tile_rows=kernels.PREFILL_ROWS if many else kernels.DECODE_ROWS,
    )
    return out.flatten(1)


def pack_pages(pool: Tensor, blocks: Tensor, unit: Tensor) -> None:
    """Copy whole blocks of all layers, `pool` [layers, blocks, ...page], into `unit` [layers, len(blocks), ...page].

    Both are contiguous and of one dtype. blocks: integers, ids within the pool, no two alike.
    """
    if picks_triton(pool):
        from headrace_kernels import page_pack  # noqa: PLC0415 - absent on machines without a GPU

        page_pack.pack_pages(pool, blocks, unit)
    else:
        torch.index_select(pool, 1, blocks, out=unit)


def unpack_pages(unit: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """The way back: set whole blocks of `pool` from `unit`. See pack_pages."""
    if picks_triton(pool):
        from headrace_kernels import page_pack  # noqa: PLC0415 - absent on machines without a GPU

        page_pack.unpack_pages(unit, pool, blocks)
    else:
        pool.index_copy_(1, blocks, unit)
