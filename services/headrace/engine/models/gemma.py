"""What Gemma 2 and 3 share: scaled embeddings, norms by 1 + weight before and after each block, layers with windows.

Owns the tensors' names of a layer.
"""

from headrace.engine.models.attention import Attention, attention_spec, query_key_weight, rank_heads, take_projections
from headrace.engine.models.decoder import Decoder, Layer
from headrace.engine.models.feed_forward import take_feed_forward
from headrace.engine.models.head import take_ends
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import RopeTables, local_rope_tables, rope_tables
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_gemma(config: ModelConfig, weights: Source[M, V], length: int, *, query_key_norms: bool) -> Decoder[M, V]:
    """This rank's share. length: positions that the rotary tables cover. Raises StartupError for tensors that are
    missing, misshapen or left over."""
    layers = tuple(_layer(config, weights, index, query_key_norms) for index in range(config.layers))
    norm = _norm(config, weights, "model.norm.weight")
    embedding, head = take_ends(config, weights, scale=config.hidden_size**0.5)
    return Decoder(embedding, layers, norm, head, _ropes(config, length))


def _ropes(config: ModelConfig, length: int) -> tuple[RopeTables, ...]:
    whole = rope_tables(config, length)
    return (whole, local_rope_tables(config, length)) if config.local_rope_theta else (whole,)


def _layer(config: ModelConfig, weights: Source[M, V], index: int, query_key_norms: bool) -> Layer[M, V]:
    name = f"model.layers.{index}."
    before, after, before_feed, after_feed = (
        _norm(config, weights, f"{name}{norm}_layernorm.weight")
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward")
    )
    heads, attention = rank_heads(config, weights.ranks), f"{name}self_attn."
    norm = None
    if query_key_norms:
        norm = RmsNorm(weights.one_plus(query_key_weight(heads, config, weights, attention)), config.norm_eps)
    projections = take_projections(config, weights, attention)
    return Layer(
        norms=(before, before_feed),
        attention=Attention(index, heads, projections, norm, attention_spec(config, index)),
        feed_forward=take_feed_forward(config, weights, f"{name}mlp."),
        post_norms=(after, after_feed),
        rope=1 if config.local_rope_theta and config.window(index) else 0,
    )


def _norm(config: ModelConfig, weights: Source[M, V], name: str) -> RmsNorm[V]:
    return RmsNorm(weights.one_plus(weights.vector(name, config.hidden_size)), config.norm_eps)
