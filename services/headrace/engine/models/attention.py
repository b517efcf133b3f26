"""The attention block of a layer: projections, norms of queries and keys, rotation, paged attention, projection back.

Owns one rank's heads, and the names that most checkpoints give their tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine import ops
from headrace.engine.batch import Step
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import Angles
from headrace.engine.ops import AttentionSpec
from headrace.engine.parallel import Parallel, local_heads
from headrace.engine.weights.formats import QUERY_KEY_VALUE
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import ModelConfig


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of one rank."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True, slots=True)
class Projections:
    """One rank's. qkv: [(queries + 2 x keys) x dim, hidden], with its bias; out: [hidden, queries x dim].

    out_bias is whole on every rank and added once, after the sum.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al., arXiv 2305.13245) of layer `index`.

    norm: of queries and keys together before they turn, weight [queries + keys, dim]; None for none.
    """

    index: int
    heads: Heads
    projections: Projections
    norm: RmsNorm | None
    spec: AttentionSpec
    parallel: Parallel

    def __call__(self, normed: Tensor, batch: Step, kv: ops.PagedKv, angles: Angles) -> Tensor:
        """normed: [batch.rows, hidden], and so the result. Writes the batch's keys and values into `kv`."""
        parts = self.projections
        states = functional.linear(normed, parts.qkv, parts.qkv_bias)[: batch.tokens]
        states = states.view(batch.tokens, -1, self.heads.dim)
        turning = states[:, : self.heads.queries + self.heads.keys]
        turned = ops.rotate(turning if self.norm is None else self.norm(turning), *angles)
        kv.write(self.index, batch.slots, turned[:, self.heads.queries :], states[:, turning.shape[1] :])
        queries = turned[:, : self.heads.queries]
        attended = ops.attention(queries, kv, self.index, self.spec, batch)
        out = self.parallel.sum(functional.linear(attended, parts.out))
        return out if parts.out_bias is None else out + parts.out_bias


def rank_heads(config: ModelConfig, parallel: Parallel) -> Heads:
    """Raises StartupError if the heads cannot be shared out evenly."""
    keys = local_heads("key-value", config.kv_heads, parallel.size)
    return Heads(local_heads("query", config.heads, parallel.size), keys, config.head_dim)


def attention_spec(config: ModelConfig, layer: int) -> AttentionSpec:
    """The numbers of one layer's attention. A window as wide as the longest context is none."""
    window = config.window(layer)
    return AttentionSpec(
        scale=config.attention_scale or config.head_dim**-0.5,
        window=window if window < config.max_position else 0,
        softcap=config.attention_softcap,
    )


def query_key_weight(heads: Heads, config: ModelConfig, weights: Weights, name: str) -> Tensor:
    """The weight of `Attention.norm`, [queries + keys, dim], of q_norm and k_norm of the attention called `name`."""
    query, key = (weights.take(f"{name}{which}_norm.weight", (config.head_dim,)) for which in "qk")
    return torch.cat((query.expand(heads.queries, -1), key.expand(heads.keys, -1)))


def take_projections(config: ModelConfig, weights: Weights, name: str) -> Projections:
    """Out of q_proj, k_proj, v_proj and o_proj of the attention called `name`, with biases where `config` has them."""
    hidden = config.hidden_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = ((queries, hidden), (keys, hidden), (keys, hidden))
    qkv = weights.stacked(tuple(f"{name}{part}.weight" for part in QUERY_KEY_VALUE), shapes, shard=0)
    qkv_bias = out_bias = None
    if config.qkv_bias:
        lengths = tuple((rows,) for rows, _ in shapes)
        qkv_bias = weights.stacked(tuple(f"{name}{part}.bias" for part in QUERY_KEY_VALUE), lengths, shard=0)
    if config.out_bias:
        out_bias = weights.take(f"{name}o_proj.bias", (hidden,))
    return Projections(qkv, qkv_bias, weights.take(f"{name}o_proj.weight", (hidden, queries), shard=1), out_bias)
