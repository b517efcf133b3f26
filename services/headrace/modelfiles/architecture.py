"""Which tensors a supported architecture consists of, and the check that a model has exactly those.

Knows Hugging Face's names and shapes; knows no file format.
"""

from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import StartupError
from headrace.modelfiles.files import ModelConfig, TensorEntry
from headrace.modelfiles.support import ARCHITECTURES

_IGNORED_SUFFIX = ".rotary_emb.inv_freq"  # written by old versions of transformers; follows from rope_theta
_LM_HEAD = "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig) -> Shapes:
    """Every tensor of the model by name, with its shape as [out, in]."""
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for index in range(config.layers):
        parts = _norms(config) | _attention(config) | _block(config, index)
        shapes |= {f"model.layers.{index}.{part}": shape for part, shape in parts.items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes[_LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _norms(config: ModelConfig) -> Shapes:
    architecture = ARCHITECTURES[config.architecture]
    names = ["input_layernorm", "post_attention_layernorm"]
    if architecture.post_norms:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: Shapes = {f"{name}.weight": (config.hidden_size,) for name in names}
    if architecture.query_key_norms:
        shapes |= {f"self_attn.{which}_norm.weight": (config.head_dim,) for which in "qk"}
    return shapes


def _attention(config: ModelConfig) -> Shapes:
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
    inputs = {"q": queries, "k": keys, "v": keys}
    if ARCHITECTURES[config.architecture].fused:
        inputs = {"qkv": queries + 2 * keys}
    shapes: Shapes = {f"self_attn.{name}_proj.weight": (rows, hidden) for name, rows in inputs.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, queries)
    if config.qkv_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (rows,) for name, rows in inputs.items()}
    if config.out_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return shapes


def _block(config: ModelConfig, index: int) -> Shapes:
    names, experts = ARCHITECTURES[config.architecture].experts, config.experts
    if names is None or experts is None or index in experts.dense_layers:
        return _feed_forward(config)
    hidden, inner = config.hidden_size, experts.inner
    shapes: Shapes = {f"{names.mixture}.gate.weight": (experts.count, hidden)}
    for expert in range(experts.count):
        name = f"{names.mixture}.experts.{expert}."
        shapes |= {f"{name}{part}.weight": (inner, hidden) for part in (names.gate, names.up)}
        shapes[f"{name}{names.down}.weight"] = (hidden, inner)
    return shapes


def _feed_forward(config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    inputs = {"gate": inner, "up": inner}
    if ARCHITECTURES[config.architecture].fused:
        inputs = {"gate_up": 2 * inner}
    shapes: Shapes = {f"mlp.{name}_proj.weight": (rows, hidden) for name, rows in inputs.items()}
    shapes["mlp.down_proj.weight"] = (hidden, inner)
    if config.feed_forward_bias:
        shapes |= {f"mlp.{name}_proj.bias": (rows,) for name, rows in inputs.items()}
        shapes["mlp.down_proj.bias"] = (hidden,)
    return shapes


def complete(config: ModelConfig, tensors: Sequence[TensorEntry], path: Path) -> tuple[TensorEntry, ...]:
    """The tensors that the model is made of. Raises StartupError if one lacks, is misshapen or is not understood."""
    expected = expected_shapes(config)
    unused = {_LM_HEAD} if config.tied_embeddings else set()
    kept = [entry for entry in tensors if entry.name not in unused and not entry.name.endswith(_IGNORED_SUFFIX)]
    for entry in kept:
        if entry.name not in expected:
            raise StartupError(
                f"{path} holds a tensor {entry.name!r} that a {config.architecture} model does not have.",
                remedy="This variant of the architecture is not supported.",
            )
        if entry.shape != expected[entry.name]:
            raise StartupError(
                f"{path}: tensor {entry.name!r} has shape {list(entry.shape)}, the model's configuration "
                f"asks for {list(expected[entry.name])}.",
                remedy="Fetch the files again; they do not belong together.",
            )
    missing = expected.keys() - {entry.name for entry in kept}
    if missing:
        raise StartupError(
            f"{path} lacks {len(missing)} tensors, among them {min(missing)!r}.", remedy="Fetch the files again."
        )
    return tuple(kept)
