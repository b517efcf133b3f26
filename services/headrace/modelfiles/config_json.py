"""config.json in Hugging Face's form: which of its wishes cannot be met, and the ModelConfig that it describes.

Owns the meaning of the keys, with transformers' defaults where a key may be left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.modelfiles.files import Experts, ModelConfig
from headrace.modelfiles.rope_json import (
    local_rope_theta,
    local_rope_variant,
    rope_scaling,
    rope_theta,
    rope_variant,
    rotary_part,
)
from headrace.modelfiles.support import ACTIVATIONS, ARCHITECTURES

Json = dict[str, Any]
Windows = tuple[int, ...]

_GEMMAS = ("gemma2", "gemma3_text")
# Those that heed attention_bias.
_BIASED = ("llama", "qwen3", "qwen3_moe", *_GEMMAS)
_SIZES = ("num_attention_heads", "hidden_size", "num_hidden_layers")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_QWEN3_HEAD_DIM, _GEMMA_HEAD_DIM = 128, 256  # where the key is left out
_HEAD_DIMS = {"qwen3": _QWEN3_HEAD_DIM, "gemma2": _GEMMA_HEAD_DIM, "gemma3_text": _GEMMA_HEAD_DIM}


def missing_parts(raw: Json) -> tuple[str, ...]:
    """What the model needs and is not supported, each as words for "needs ..."; () if nothing."""
    name = str(raw.get("model_type"))
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        return (f"the architecture {name!r}", *_quantised(raw))
    found = list(_quantised(raw))
    variant, local, part = rope_variant(raw), local_rope_variant(raw), rotary_part(raw)
    if variant not in architecture.ropes:
        found.append(f"the rotary embedding {variant!r} in {name}")
    if local != "default":
        found.append(f"the rotary embedding {local!r} in layers with a window")
    if part != 1.0 and not architecture.fused:
        found.append(f"rotary embedding of {part} of a head in {name}")
    if _activation(raw) not in ACTIVATIONS:
        found.append(f"the activation {_activation(raw)!r}")
    if raw.get("use_bidirectional_attention"):
        found.append("bidirectional attention")
    kinds = raw.get("layer_types") or ()
    found += [f"layers of type {kind!r}" for kind in sorted({str(kind) for kind in kinds} - set(_LAYER_TYPES))]
    return tuple(found)


def _quantised(raw: Json) -> Sequence[str]:
    quantisation = raw.get("quantization_config")
    if not quantisation:
        return ()
    method = quantisation.get("quant_method", "unnamed") if isinstance(quantisation, dict) else "unnamed"
    return (f"quantised weights ({method})",)


def model_config(raw: Json) -> ModelConfig:
    """Of a configuration that nothing is missing for. Raises KeyError, TypeError or ValueError for a number that is
    missing or cannot be right."""
    name = str(raw["model_type"])
    heads, hidden, layers = (_count(raw, key) for key in _SIZES)
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    head_dim = int(raw.get("head_dim") or _HEAD_DIMS.get(name) or hidden // heads)
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} attention heads are no multiple of {kv_heads} key-value heads")
    bias = bool(raw.get("attention_bias")) and name in _BIASED
    gemma = name in _GEMMAS
    scaling = rope_scaling(raw)
    return ModelConfig(
        architecture=name,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=rope_theta(raw),
        max_position=_max_position(raw, scaling.factor if scaling.variant == "yarn" else 0.0),
        tied_embeddings=bool(raw.get("tie_word_embeddings", gemma)),
        rope_scaling=scaling,
        local_rope_theta=local_rope_theta(raw) if name == "gemma3_text" else 0.0,
        rotary_dim=int(head_dim * rotary_part(raw)) if rotary_part(raw) != 1.0 else 0,
        activation=ACTIVATIONS[_activation(raw)],
        windows=_WINDOWS[name](raw, layers) if name in _WINDOWS else (),
        attention_scale=float(raw.get("query_pre_attn_scalar", 256)) ** -0.5 if gemma else 0.0,
        attention_softcap=float(raw.get("attn_logit_softcapping", 50.0) or 0.0) if name == "gemma2" else 0.0,
        logit_softcap=float(raw.get("final_logit_softcapping", 30.0 if name == "gemma2" else 0.0) or 0.0)
        if gemma
        else 0.0,
        qkv_bias=name == "qwen2" or bias,
        out_bias=name != "qwen2" and bias,
        feed_forward_bias=bool(raw.get("mlp_bias")) and name == "llama",
        experts=_experts(raw, layers) if ARCHITECTURES[name].experts else None,
    )


def _count(raw: Json, key: str) -> int:
    count = int(raw[key])
    if count < 1:
        raise ValueError(f"{key} is {count}")
    return count


def _activation(raw: Json) -> str:
    if raw.get("model_type") in _GEMMAS:
        return str(raw.get("hidden_activation") or "gelu_pytorch_tanh")
    return str(raw.get("hidden_act") or "silu")


def _max_position(raw: Json, yarn_factor: float) -> int:
    """The longest context. Models that are to be stretched by yarn may state the length before it."""
    stated = _count(raw, "max_position_embeddings")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings") if yarn_factor else None
    return max(stated, int(original * yarn_factor)) if original else stated


def _experts(raw: Json, layers: int) -> Experts:
    count = int(raw.get("num_experts") or raw["num_local_experts"])
    per_token = int(raw["num_experts_per_tok"])
    if not 0 < per_token <= count:
        raise ValueError(f"{per_token} of {count} experts a token")
    if raw["model_type"] == "mixtral":
        return Experts(count, per_token, _count(raw, "intermediate_size"), normalised=True)
    step, dense = int(raw.get("decoder_sparse_step") or 1), set(raw.get("mlp_only_layers") or ())
    dense |= {index for index in range(layers) if (index + 1) % step}
    normalised = bool(raw.get("norm_topk_prob", False))
    return Experts(count, per_token, _count(raw, "moe_intermediate_size"), normalised, tuple(sorted(dense)))


def _every_layer(default: int) -> Callable[[Json, int], Windows]:
    def windows(raw: Json, layers: int) -> Windows:
        window = int(raw.get("sliding_window", default) or 0)
        return (window,) * layers if window else ()

    return windows


def _qwen(raw: Json, layers: int) -> Windows:
    """Only if asked for: in the layers named, or those from max_window_layers up."""
    window = int(raw.get("sliding_window", 4096) or 0)
    if not raw.get("use_sliding_window") or not window:
        return ()
    first = int(raw.get("max_window_layers", 28))
    return _named(raw, [window if index >= first else 0 for index in range(layers)], window)


def _qwen_moe(raw: Json, layers: int) -> Windows:
    return _every_layer(4096)(raw, layers) if raw.get("use_sliding_window") else ()


def _alternating(raw: Json, layers: int) -> Windows:
    """Gemma: every layer but each second (Gemma 2) or each sliding_window_pattern-th (Gemma 3), or those named."""
    period = 2 if raw["model_type"] == "gemma2" else int(raw.get("sliding_window_pattern") or 6)
    window = int(raw.get("sliding_window", 4096) or 0)
    return _named(raw, [window if (index + 1) % period else 0 for index in range(layers)], window)


def _named(raw: Json, otherwise: list[int], window: int) -> Windows:
    kinds = raw.get("layer_types")
    if kinds is None:
        return tuple(otherwise)
    if len(kinds) != len(otherwise):
        raise ValueError(f"{len(kinds)} layer_types for {len(otherwise)} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


_WINDOWS: dict[str, Callable[[Json, int], Windows]] = {
    "mistral": _every_layer(4096),
    "mixtral": _every_layer(0),
    "phi3": _every_layer(0),
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen3_moe": _qwen_moe,
    "gemma2": _alternating,
    "gemma3_text": _alternating,
}
