"""Phi 3, 3.5 and 4 (arXiv 2404.14219): Llama with fused matrices and, where the configuration says so, longrope.

A checkpoint holds query, key and value as one matrix, and gate and up as one. The rotary embedding may turn a part of
a head only.
"""

from headrace.engine.models.attention import Projections
from headrace.engine.models.decoder import Block, Decoder
from headrace.engine.models.feed_forward import FeedForward
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_phi3(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm. Pages outside a window stay, hidden by the mask."""
    return load_pre_norm(config, weights, length, block=_feed_forward, projections=_projections)


def _projections(config: ModelConfig, weights: Source[M, V], name: str) -> Projections[M, V]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = weights.fused(f"{name}qkv_proj.weight", (queries, keys, keys), config.hidden_size)
    return Projections(qkv, None, weights.matrix(f"{name}o_proj.weight", (config.hidden_size, queries), shard=1), None)


def _feed_forward(config: ModelConfig, weights: Source[M, V], index: int) -> Block[M, V]:
    name, inner, hidden = f"model.layers.{index}.mlp.", config.intermediate_size, config.hidden_size
    return FeedForward(
        gate_up=weights.fused(f"{name}gate_up_proj.weight", (inner, inner), hidden),
        down=weights.matrix(f"{name}down_proj.weight", (hidden, inner), shard=1),
        activation=config.activation,
    )
