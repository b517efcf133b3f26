"""The Llama architecture: pre-norm decoder, grouped-query attention with rotary positions, gated feed-forward.

Owns the order of operations and the names of its tensors. It knows no pages beyond handing them to attention.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine import ops
from headrace.engine.batch import Batch
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import ModelConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights. Projections of the same input are stacked: q, k, v and gate, up."""

    attention_norm: Tensor
    qkv: Tensor
    attention_out: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    """See `forward` and `logits`. length: positions the rotary tables cover."""

    def __init__(self, config: ModelConfig, weights: Weights, length: int, dtype: torch.dtype) -> None:
        self._config = config
        hidden = config.hidden_size
        self._embedding = weights.take("model.embed_tokens.weight", (config.vocab_size, hidden))
        self._layers = [_layer(config, weights, index) for index in range(config.layers)]
        self._norm = weights.take("model.norm.weight", (hidden,))
        self._head = self._embedding
        if not config.tied_embeddings:
            self._head = weights.take("lm_head.weight", (config.vocab_size, hidden))
        weights.finish(frozenset({"lm_head.weight"}) if config.tied_embeddings else frozenset())
        self._cosines, self._sines = ops.rope_tables(config.rope_theta, config.head_dim, length, dtype)

    def forward(self, batch: Batch, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values into `kv`; returns the last layer's states [batch.rows, hidden]."""
        angles = self._cosines[batch.positions], self._sines[batch.positions]
        hidden = functional.embedding(batch.ids, self._embedding)
        for index, layer in enumerate(self._layers):
            normed = ops.rms_norm(hidden, layer.attention_norm, self._config.norm_eps)
            attended = self._attention(index, normed, batch, kv, angles)
            hidden = hidden + functional.linear(attended, layer.attention_out)
            normed = ops.rms_norm(hidden, layer.feed_forward_norm, self._config.norm_eps)
            hidden = hidden + functional.linear(ops.gated(functional.linear(normed, layer.gate_up)), layer.down)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[row, hidden] to float32 [row, vocabulary]. Pad the rows to ops.ROW_MULTIPLE."""
        normed = ops.rms_norm(hidden, self._norm, self._config.norm_eps)
        return functional.linear(normed, self._head).float()

    def _attention(
        self, index: int, normed: Tensor, batch: Batch, kv: ops.PagedKv, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        config, tokens = self._config, batch.tokens
        rotating = config.heads + config.kv_heads
        states = functional.linear(normed, self._layers[index].qkv)[:tokens].view(tokens, -1, config.head_dim)
        rotated = ops.rotate(states[:, :rotating], *angles)
        kv.write(index, batch.slots, rotated[:, config.heads :], states[:, rotating:])
        return ops.attention(rotated[:, : config.heads], kv, index, batch.contexts, batch.rows)


def _layer(config: ModelConfig, weights: Weights, index: int) -> Layer:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    name = f"model.layers.{index}."
    attention, mlp = name + "self_attn.", name + "mlp."
    return Layer(
        attention_norm=weights.take(name + "input_layernorm.weight", (hidden,)),
        qkv=weights.stacked(
            (attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"),
            ((queries, hidden), (keys, hidden), (keys, hidden)),
        ),
        attention_out=weights.take(attention + "o_proj.weight", (hidden, queries)),
        feed_forward_norm=weights.take(name + "post_attention_layernorm.weight", (hidden,)),
        gate_up=weights.stacked((mlp + "gate_proj.weight", mlp + "up_proj.weight"), ((inner, hidden), (inner, hidden))),
        down=weights.take(mlp + "down_proj.weight", (hidden, inner)),
    )
