"""The attention block of a layer: projections, norms of queries and keys, rotation, paged attention, projection back.

Owns one rank's heads, and the names that most checkpoints give their tensors.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.engine.models.norms import RmsNorm
from headrace.engine.parallel import local_heads
from headrace.engine.weights.formats import QUERY_KEY_VALUE
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is a layer's own in its attention.

    scale: factor of query x key. window: a query sees the last `window` tokens, itself among them; 0: all of them.
    softcap: scores s become softcap x tanh(s / softcap); 0: they stay.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of one rank."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True, slots=True)
class Projections(Generic[M, V]):
    """One rank's. qkv: [(queries + 2 x keys) x dim, hidden], with its bias; out: [hidden, queries x dim].

    out_bias is whole on every rank and added once, after the sum.
    """

    qkv: M
    qkv_bias: V | None
    out: M
    out_bias: V | None


@dataclass(frozen=True, slots=True)
class Attention(Generic[M, V]):
    """Grouped-query attention (Ainslie et al., arXiv 2305.13245) of layer `index`.

    norm: of queries and keys together before they turn, weight [queries + keys, dim]; None for none.
    """

    index: int
    heads: Heads
    projections: Projections[M, V]
    norm: RmsNorm[V] | None
    spec: AttentionSpec


def rank_heads(config: ModelConfig, ranks: int) -> Heads:
    """Raises StartupError if the heads cannot be shared out evenly."""
    keys = local_heads("key-value", config.kv_heads, ranks)
    return Heads(local_heads("query", config.heads, ranks), keys, config.head_dim)


def attention_spec(config: ModelConfig, layer: int) -> AttentionSpec:
    """The numbers of one layer's attention. A window as wide as the longest context is none."""
    window = config.window(layer)
    return AttentionSpec(
        scale=config.attention_scale or config.head_dim**-0.5,
        window=window if window < config.max_position else 0,
        softcap=config.attention_softcap,
    )


def query_key_weight(heads: Heads, config: ModelConfig, weights: Source[M, V], name: str) -> V:
    """The weight of `Attention.norm`, [queries + keys, dim], of q_norm and k_norm of the attention called `name`."""
    query, key = (weights.vector(f"{name}{which}_norm.weight", config.head_dim) for which in "qk")
    return weights.per_head([(query, heads.queries), (key, heads.keys)])


def take_projections(config: ModelConfig, weights: Source[M, V], name: str) -> Projections[M, V]:
    """Out of q_proj, k_proj, v_proj and o_proj of the attention called `name`, with biases where `config` has them."""
    hidden = config.hidden_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows, parts = (queries, keys, keys), [f"{name}{part}." for part in QUERY_KEY_VALUE]
    qkv = weights.stacked([f"{part}weight" for part in parts], [(each, hidden) for each in rows])
    qkv_bias = weights.joined([f"{part}bias" for part in parts], rows) if config.qkv_bias else None
    out_bias = weights.vector(f"{name}o_proj.bias", hidden) if config.out_bias else None
    return Projections(qkv, qkv_bias, weights.matrix(f"{name}o_proj.weight", (hidden, queries), shard=1), out_bias)
