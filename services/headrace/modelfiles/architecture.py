"""Which tensors a supported architecture consists of, and the check that a model has exactly those.

Knows Hugging Face's names and shapes; knows no file format.
"""

from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import StartupError
from headrace.modelfiles.files import ModelConfig, TensorEntry

SUPPORTED = ("llama",)
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"  # written by old versions of transformers; follows from rope_theta
_LM_HEAD = "lm_head.weight"


def require_supported(architecture: str, path: Path) -> None:
    """Raises StartupError unless `architecture` can be run."""
    if architecture not in SUPPORTED:
        raise StartupError(
            f"{path} holds a model of architecture {architecture!r}, which is not supported.",
            remedy=f"Supported: {', '.join(SUPPORTED)}.",
        )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by name, with its shape as [out, in]."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{part}.weight": shape for part, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes[_LM_HEAD] = (config.vocab_size, hidden)
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
