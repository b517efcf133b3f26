"""A decoder that torch computes, with the kernels behind `ops`: states in and out of each of its parts.

Owns the arithmetic of every part of models/decoder.py, and the exchanges between ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine import ops
from headrace.engine.activations import soft_cap
from headrace.engine.batch import Step
from headrace.engine.models.attention import Attention
from headrace.engine.models.decoder import Decoder, Layer
from headrace.engine.models.experts import Expert, Mixture
from headrace.engine.models.feed_forward import FeedForward
from headrace.engine.models.norms import RmsNorm
from headrace.engine.parallel import Parallel
from headrace.engine.rows import padded_rows

Norm = RmsNorm[Tensor]
Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class TorchDecoder:
    """See TensorModel. ropes: cosines and sines of each of the decoder's tables, [position, 1, rotary dim], in the
    model's dtype; `parts` need hold them no more."""

    parts: Decoder[Tensor, Tensor]
    ropes: tuple[Angles, ...]
    parallel: Parallel

    @property
    def width(self) -> int:
        """Of a state."""
        return self.parts.embedding.table.shape[1]

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.feed_forward, Mixture) for layer in self.parts.layers)

    def forward(self, batch: Step, kv: ops.PagedKv) -> Tensor:
        angles = [(cosines[batch.positions], sines[batch.positions]) for cosines, sines in self.ropes]
        hidden = self._embedded(batch.ids)
        for layer in self.parts.layers:
            hidden = self._layer(layer, hidden, batch, kv, angles[layer.rope])
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.parts.head
        shares = self.parallel.gather(functional.linear(_normed(self.parts.norm, hidden), head.rows))
        logits = shares[:, : head.vocabulary].float()
        return soft_cap(logits, head.softcap) if head.softcap else logits

    def _embedded(self, ids: Tensor) -> Tensor:
        """[row] to [row, hidden]."""
        scale, rows = self.parts.embedding.scale, functional.embedding(ids, self.parts.embedding.table)
        return rows if scale == 1.0 else rows * torch.tensor(scale, dtype=rows.dtype)

    def _layer(
        self, layer: Layer[Tensor, Tensor], hidden: Tensor, batch: Step, kv: ops.PagedKv, angles: Angles
    ) -> Tensor:
        """[batch.rows, hidden], and so the result."""
        before, between = layer.norms
        attended = self._attend(layer.attention, _normed(before, hidden), batch, kv, angles)
        if not layer.post_norms:
            hidden, normed = ops.add_rms_norm(hidden, attended, between.weight, between.eps)
            return hidden + self._feed(layer, normed)
        after_attention, after_feed = layer.post_norms
        hidden = ops.rms_norm_add(attended, hidden, after_attention.weight, after_attention.eps)
        fed = self._feed(layer, _normed(between, hidden))
        return ops.rms_norm_add(fed, hidden, after_feed.weight, after_feed.eps)

    def _attend(
        self, attention: Attention[Tensor, Tensor], normed: Tensor, batch: Step, kv: ops.PagedKv, angles: Angles
    ) -> Tensor:
        """normed: [batch.rows, hidden], and so the result. Writes the batch's keys and values into `kv`."""
        parts, heads = attention.projections, attention.heads
        states = functional.linear(normed, parts.qkv, parts.qkv_bias)[: batch.tokens]
        states = states.view(batch.tokens, -1, heads.dim)
        turning = states[:, : heads.queries + heads.keys]
        turned = ops.rotate(turning if attention.norm is None else _normed(attention.norm, turning), *angles)
        kv.write(attention.index, batch.slots, turned[:, heads.queries :], states[:, turning.shape[1] :])
        attended = ops.attention(turned[:, : heads.queries], kv, attention.index, attention.spec, batch)
        out = self.parallel.sum(functional.linear(attended, parts.out))
        return out if parts.out_bias is None else out + parts.out_bias

    def _feed(self, layer: Layer[Tensor, Tensor], normed: Tensor) -> Tensor:
        """[row, hidden] to [row, hidden]."""
        feed = layer.feed_forward
        if isinstance(feed, Mixture):
            return self.parallel.sum(_mixed(feed, normed))
        out = self.parallel.sum(functional.linear(_gated(feed, normed), feed.down))
        return out if feed.down_bias is None else out + feed.down_bias


def _normed(norm: Norm, hidden: Tensor) -> Tensor:
    """Of [row, dim] or [row, head, dim]."""
    return ops.rms_norm(hidden, norm.weight, norm.eps)


def _mixed(mixture: Mixture[Tensor], normed: Tensor) -> Tensor:
    """[row, hidden] to [row, hidden], this rank's part of the sum. A row's experts are added in their order, whatever
    else is in the batch."""
    chances = functional.linear(normed, mixture.router).float().softmax(-1)
    weights, chosen = chances.topk(mixture.per_token, dim=-1)
    if mixture.normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    choices, weights = chosen.flatten(), weights.to(normed.dtype).flatten()
    # Sorted by expert: choice c is one of row c // per_token.
    order = torch.argsort(choices, stable=True)
    counts = torch.bincount(choices, minlength=len(mixture.experts)).tolist()
    out = torch.zeros_like(normed)
    for expert, these in zip(mixture.experts, torch.split(order, counts), strict=True):
        if len(these):
            rows = these // mixture.per_token
            out.index_add_(0, rows, _answer(expert, mixture.activation, normed, rows) * weights[these, None])
    return out


def _answer(expert: Expert[Tensor], activation: str, normed: Tensor, rows: Tensor) -> Tensor:
    """The expert's to some rows, computed with as many as ROW_MULTIPLE asks for."""
    padded = functional.pad(rows, (0, padded_rows(len(rows)) - len(rows)))
    inner = ops.gate(functional.linear(normed[padded], expert.gate_up), activation)
    return functional.linear(inner, expert.down)[: len(rows)]


def _gated(feed: FeedForward[Tensor, Tensor], normed: Tensor) -> Tensor:
    return ops.gate(functional.linear(normed, feed.gate_up, feed.gate_up_bias), feed.activation)
