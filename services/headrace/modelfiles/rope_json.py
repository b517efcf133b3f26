"""The rotary embedding as config.json tells it: `rope_parameters` since transformers 5, `rope_scaling` before."""

import math
from typing import Any

from headrace.modelfiles.files import RopeScaling

Json = dict[str, Any]

# Bases that transformers assumes where a configuration names none.
_BASES = {"mixtral": 1_000_000.0, "gemma3_text": 1_000_000.0}
_BASE, _LOCAL_BASE = 10_000.0, 10_000.0
# Two kinds of layers may have their own parameters.
_WHOLE, _LOCAL = "full_attention", "sliding_attention"
_OLD_LONGROPE = ("su", "yarn")  # what early Phi 3 checkpoints call it


def rope_variant(raw: Json) -> str:
    """The variant's name, known or not."""
    rope = _parameters(raw, _WHOLE)
    variant = str(rope.get("rope_type") or rope.get("type") or "default")
    return "longrope" if raw.get("model_type") == "phi3" and variant in _OLD_LONGROPE else variant


def local_rope_variant(raw: Json) -> str:
    """That of the layers with a window: "default" where nothing is said of them."""
    rope = _local_parameters(raw)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rotary_part(raw: Json) -> float:
    """The part of a head that rotates, from its beginning."""
    return float(_parameters(raw, _WHOLE).get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0)


def rope_theta(raw: Json) -> float:
    """The base."""
    named = _parameters(raw, _WHOLE).get("rope_theta") or raw.get("rope_theta")
    return float(named or _BASES.get(str(raw.get("model_type")), _BASE))


def local_rope_theta(raw: Json) -> float:
    """The base in layers with a window, for architectures where it is another."""
    return float(_local_parameters(raw).get("rope_theta") or raw.get("rope_local_base_freq") or _LOCAL_BASE)


def rope_scaling(raw: Json) -> RopeScaling:
    """Raises KeyError, TypeError or ValueError for a number that is missing or is none. The variant must be known."""
    variant, rope = rope_variant(raw), _parameters(raw, _WHOLE)
    if variant == "default":
        return RopeScaling()
    if variant == "linear":
        return RopeScaling(variant, factor=float(rope["factor"]))
    original = _original(raw, rope)
    if variant == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling(variant, float(rope["factor"]), original, low_freq_factor=low, high_freq_factor=high)
    if variant == "yarn":
        return _yarn(raw, rope, original)
    return _longrope(raw, rope, original)


def _yarn(raw: Json, rope: Json, original: int) -> RopeScaling:
    factor = float(rope.get("factor") or int(raw["max_position_embeddings"]) / original)
    attention = rope.get("attention_factor")
    if attention is None:
        some, whole = float(rope.get("mscale") or 0), float(rope.get("mscale_all_dim") or 0)
        attention = _mscale(factor, some) / _mscale(factor, whole) if some and whole else _mscale(factor, 1.0)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=float(attention),
    )


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(raw: Json, rope: Json, original: int) -> RopeScaling:
    factor = float(rope.get("factor") or int(raw["max_position_embeddings"]) / original)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (tuple(float(each) for each in rope[f"{which}_factor"]) for which in ("short", "long"))
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    rotating = int(int(raw.get("head_dim") or hidden // heads) * rotary_part(raw)) // 2
    if len(short) != rotating or len(long) != rotating:
        raise ValueError(f"longrope has {len(short)} short and {len(long)} long factors for {rotating} frequencies")
    return RopeScaling(
        "longrope",
        factor,
        original,
        attention_factor=float(attention),
        short_factors=short,
        long_factors=long,
    )


def _original(raw: Json, rope: Json) -> int:
    """The context before scaling. Phi 3 writes it beside the parameters, and means that one."""
    original = raw.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    return int(original or raw["max_position_embeddings"])


def _parameters(raw: Json, kind: str) -> Json:
    """Those of one kind of layer, which all share one set unless they are nested by kind."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if isinstance(rope, dict) and (_WHOLE in rope or _LOCAL in rope):
        rope = rope.get(kind) or {}
    return rope if isinstance(rope, dict) else {}


def _local_parameters(raw: Json) -> Json:
    """{} where layers with a window have none of their own."""
    rope = raw.get("rope_parameters") or {}
    return _parameters(raw, _LOCAL) if isinstance(rope, dict) and _LOCAL in rope else {}
