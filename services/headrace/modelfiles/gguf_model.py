"""A model out of one GGUF file: what its metadata keys and tensor names mean, in Hugging Face's terms.

Knows the keys, not the container (`gguf`) and not where results are kept (`sidecar`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.core.errors import StartupError
from headrace.modelfiles.architecture import complete
from headrace.modelfiles.files import ModelConfig, TensorEntry
from headrace.modelfiles.gguf import GgufFile, GgufTensor, MetadataValue
from headrace.modelfiles.pretokenizers import Json, tokenizer_json
from headrace.modelfiles.stop_tokens import stop_ids
from headrace.modelfiles.support import ARCHITECTURES

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_ADDS_BOS = {"llama-bpe"}  # pre-tokenizers whose models want a beginning token when the file does not say
_DECLARED_ENDS = ("eos", "eot", "eom")
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = {"llama"}  # architectures whose query and key rows llama.cpp's converter reorders
_Value = TypeVar("_Value", int, float, str, bool, list[MetadataValue])


@dataclass(frozen=True, slots=True)
class GgufModel:
    """Everything `ModelFiles` needs that stands in the file itself, and the tokenizer to be written out."""

    config: ModelConfig
    tensors: tuple[TensorEntry, ...]
    tokenizer: Json
    chat_template: str | None
    bos_token: str
    eos_token: str
    add_bos: bool
    stop_ids: tuple[int, ...]


def interpret(file: GgufFile) -> GgufModel:
    """Raises StartupError for an architecture, variant, tokenizer or tensor that is not supported or is missing."""
    keys = _Keys(file)
    config = _config(keys, {tensor.name: tensor for tensor in file.tensors})
    tensors = complete(config, [_entry(tensor, config, file.path) for tensor in file.tensors], file.path)
    tokens = keys.texts("tokenizer.ggml.tokens")
    if not 0 < len(tokens) <= config.vocab_size or len(set(tokens)) != len(tokens):
        raise keys.broken(f"its vocabulary of {len(tokens)} texts does not fit {config.vocab_size} token ids")
    control, tokenizer = _tokenizer(keys, tokens)
    pre = keys.get("tokenizer.ggml.pre", str)
    return GgufModel(
        config=config,
        tensors=tensors,
        tokenizer=tokenizer,
        chat_template=keys.get("tokenizer.chat_template", str, "") or None,
        bos_token=_token_text(keys, "bos", tokens),
        eos_token=_token_text(keys, "eos", tokens),
        add_bos=keys.get("tokenizer.ggml.add_bos_token", bool, pre in _ADDS_BOS) and "bos" in _declared(keys, ("bos",)),
        stop_ids=stop_ids(_declared(keys, _DECLARED_ENDS).values(), control),
    )


def _require_supported(architecture: str, path: Path) -> None:
    known = [name for name, each in ARCHITECTURES.items() if each.gguf]
    if architecture not in known:
        raise StartupError(
            f"{path} holds a model of architecture {architecture!r}, which is not supported as GGUF.",
            remedy=f"As GGUF: {', '.join(known)}; as safetensors: {', '.join(ARCHITECTURES)}.",
        )


class _Keys:
    """Typed access to the metadata. A key that begins with "." is the architecture's own."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._values = file.metadata
        self.architecture = self.get("general.architecture", str)

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        key = self.full(key)
        value = self._values.get(key, default)
        if value is None:
            raise self.broken(f"the key {key!r} is missing")
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.broken(f"the key {key!r} is not of type {kind.__name__}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, int) if default is None else self.get(key, int, default)
        if value <= 0:
            raise self.broken(f"the key {self.full(key)!r} is {value}")
        return value

    def texts(self, key: str) -> list[str]:
        values = self.get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise self.broken(f"the key {key!r} is not a list of texts")
        return [str(value) for value in values]

    def full(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def has(self, key: str) -> bool:
        return key in self._values

    def broken(self, why: str) -> StartupError:
        return StartupError(
            f"{self.path} does not describe a model that can be run: {why}.", remedy="Use another file."
        )


def _config(keys: _Keys, tensors: Mapping[str, GgufTensor]) -> ModelConfig:
    _require_supported(keys.architecture, keys.path)
    _refuse_variants(keys, tensors)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise keys.broken("the tensor 'token_embd.weight' is missing")
    hidden = keys.positive(".embedding_length")
    heads = keys.positive(".attention.head_count")
    head_dim = keys.positive(".attention.key_length", hidden // heads)
    for key in (".attention.value_length", ".rope.dimension_count"):
        if keys.get(key, int, head_dim) != head_dim:
            raise keys.broken(f"{keys.full(key)!r} differs from the head's {head_dim} dimensions")
    return ModelConfig(
        architecture=keys.architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=keys.positive(".feed_forward_length"),
        layers=keys.positive(".block_count"),
        heads=heads,
        kv_heads=keys.positive(".attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=_round_float32(keys.get(".attention.layer_norm_rms_epsilon", float)),
        rope_theta=_round_float32(keys.get(".rope.freq_base", float, 10000.0)),
        max_position=keys.positive(".context_length"),
        tied_embeddings="output.weight" not in tensors,
        qkv_bias=keys.architecture == "qwen2",
    )


def _refuse_variants(keys: _Keys, tensors: Mapping[str, GgufTensor]) -> None:
    if keys.get("split.count", int, 1) > 1:
        raise keys.broken("it is one part of a file that was split; merge the parts first")
    if keys.get(".expert_count", int, 0):
        raise keys.broken("mixtures of experts are not supported")
    scaled = keys.get(".rope.scaling.type", str, "none") != "none"
    if "rope_freqs.weight" in tensors or (scaled and keys.get(".rope.scaling.factor", float, 1.0) != 1.0):
        raise keys.broken("scaled rotary embeddings are not supported")


def _round_float32(value: float) -> float:
    """The short decimal that a 32-bit float stands for: 1e-05 and not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _entry(tensor: GgufTensor, config: ModelConfig, path: Path) -> TensorEntry:
    layer = _LAYER.fullmatch(tensor.name)
    part = layer[2] if layer else ""
    if layer and part in _LAYER_NAMES and (layer[3] == "weight" or config.qkv_bias):
        name = f"model.layers.{layer[1]}.{_LAYER_NAMES[part]}.{layer[3]}"
    else:
        name = _NAMES.get(tensor.name.removesuffix(".weight"), "") + ".weight"
        name = tensor.name if name == ".weight" else name
    permuted = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(part, 0)
    permuted = permuted if config.architecture in _PERMUTED else 0
    return TensorEntry(name, path, tensor.offset, tensor.nbytes, tensor.encoding, tensor.shape, permuted)


def _tokenizer(keys: _Keys, tokens: list[str]) -> tuple[dict[str, int], Json]:
    """The ids of the control tokens by text, and the tokenizer."""
    model = keys.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise keys.broken(f"its tokenizer {model!r} is not byte-level BPE, the only kind supported in a GGUF")
    kinds = keys.get("tokenizer.ggml.token_type", list)
    if len(kinds) != len(tokens):
        raise keys.broken("its token types and tokens differ in number")
    control = [token for token, kind in enumerate(kinds) if kind == _CONTROL]
    user_defined = [token for token, kind in enumerate(kinds) if kind == _USER_DEFINED]
    merges = keys.texts("tokenizer.ggml.merges")
    tokenizer = tokenizer_json(keys.get("tokenizer.ggml.pre", str), tokens, merges, control, user_defined)
    return {tokens[token]: token for token in control}, tokenizer


def _declared(keys: _Keys, ends: tuple[str, ...]) -> dict[str, int]:
    """Those of the named special tokens that the file has, with their ids."""
    named = {end: f"tokenizer.ggml.{end}_token_id" for end in ends}
    return {end: keys.get(key, int) for end, key in named.items() if keys.has(key)}


def _token_text(keys: _Keys, which: str, tokens: list[str]) -> str:
    token = _declared(keys, (which,)).get(which)
    if token is None:
        return ""
    if not 0 <= token < len(tokens):
        raise keys.broken(f"its {which} token {token} is outside the vocabulary")
    return tokens[token]
