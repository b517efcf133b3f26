"""The plain pre-norm decoder: what Llama, Mistral, Qwen and the mixtures of experts share.

Owns the tensors' names of a layer. What differs between architectures comes as arguments and in the configuration.
"""

from typing import Protocol

from headrace.engine.models.attention import (
    Attention,
    Projections,
    attention_spec,
    query_key_weight,
    rank_heads,
    take_projections,
)
from headrace.engine.models.decoder import Block, Decoder, Layer
from headrace.engine.models.feed_forward import take_feed_forward
from headrace.engine.models.head import take_ends
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import rope_tables
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


class TakeBlock(Protocol):
    """The block of layer `index`."""

    def __call__(self, config: ModelConfig, weights: Source[M, V], index: int) -> Block[M, V]: ...


class TakeProjections(Protocol):
    """Those of the attention called `name`."""

    def __call__(self, config: ModelConfig, weights: Source[M, V], name: str) -> Projections[M, V]: ...


def dense(config: ModelConfig, weights: Source[M, V], index: int) -> Block[M, V]:
    """The feed-forward of layer `index`."""
    return take_feed_forward(config, weights, f"model.layers.{index}.mlp.")


def load_pre_norm(
    config: ModelConfig,
    weights: Source[M, V],
    length: int,
    *,
    block: TakeBlock = dense,
    projections: TakeProjections = take_projections,
    query_key_norms: bool = False,
) -> Decoder[M, V]:
    """This rank's share. length: positions that the rotary tables cover. Raises StartupError for tensors that are
    missing, misshapen or left over."""
    layers = tuple(
        _layer(config, weights, index, block=block, projections=projections, query_key_norms=query_key_norms)
        for index in range(config.layers)
    )
    norm = RmsNorm(weights.vector("model.norm.weight", config.hidden_size), config.norm_eps)
    embedding, head = take_ends(config, weights)
    return Decoder(embedding, layers, norm, head, (rope_tables(config, length),))


def _layer(
    config: ModelConfig,
    weights: Source[M, V],
    index: int,
    *,
    block: TakeBlock,
    projections: TakeProjections,
    query_key_norms: bool,
) -> Layer[M, V]:
    name = f"model.layers.{index}."
    before, after = (
        RmsNorm(weights.vector(f"{name}{norm}_layernorm.weight", config.hidden_size), config.norm_eps)
        for norm in ("input", "post_attention")
    )
    heads, attention = rank_heads(config, weights.ranks), f"{name}self_attn."
    norm = RmsNorm(query_key_weight(heads, config, weights, attention), config.norm_eps) if query_key_norms else None
    return Layer(
        norms=(before, after),
        attention=Attention(
            index,
            heads,
            projections(config, weights, attention),
            norm,
            attention_spec(config, index),
        ),
        feed_forward=block(config, weights, index),
    )
