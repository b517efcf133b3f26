"""ModelFiles: everything read from a model's files before a weight is touched. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from headrace.core.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies depart from theta's, under Hugging Face's meaning of each number.

    variant: one of `support.ROPE_VARIANTS`; the fields that it does not name keep their defaults. factor: of the
    context's length (linear, llama3, yarn). original_max_position: the context before (llama3, yarn, longrope).
    attention_factor: what cosines and sines are multiplied by (yarn, longrope). short_factors, long_factors: one
    divisor a frequency, for contexts up to original_max_position and beyond (longrope).
    """

    variant: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the feed-forward.

    count: experts of a layer; per_token: how many of them a token uses. inner: width of each. normalised: whether the
    used ones' weights are scaled to sum to 1. dense_layers: those with an ordinary feed-forward instead.
    """

    count: int
    per_token: int
    inner: int
    normalised: bool
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers of a decoder-only transformer, under Hugging Face's meaning of each.

    architecture: the `model_type` of one of `support.ARCHITECTURES`. rope_theta: base of the rotary embedding;
    local_rope_theta: that of layers with a window, unscaled; 0: the same as the others'. rotary_dim: leading
    dimensions of a head that rotate; 0: all. activation: "silu" or "gelu_tanh". windows: per layer, tokens that a
    query sees, itself among them, 0 for all; empty: all, in every layer. attention_scale: factor of query x key; 0:
    head_dim ** -0.5. attention_softcap, logit_softcap: 0 for none. qkv_bias, out_bias: of the attention's
    projections; feed_forward_bias: of all three of a feed-forward's. experts: None for a dense model.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_position: int
    tied_embeddings: bool
    rope_scaling: RopeScaling = RopeScaling()
    local_rope_theta: float = 0.0
    rotary_dim: int = 0
    activation: str = "silu"
    windows: tuple[int, ...] = ()
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    feed_forward_bias: bool = False
    experts: Experts | None = None

    def window(self, layer: int) -> int:
        """The window of one layer, 0 for none."""
        return self.windows[layer] if self.windows else 0


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor's bytes stand. name: Hugging Face's (`model.layers.0.self_attn.q_proj.weight`).

    encoding: "F32", "F16", "BF16", "Q8_0", "Q4_0" or "Q4_1" (ggml's block formats). shape: [out, in] row-major.
    permuted_heads: 0, or the head count whose rows GGUF permuted for interleaved rope, to be undone.
    """

    name: str
    path: Path
    offset: int
    nbytes: int
    encoding: str
    shape: tuple[int, ...]
    permuted_heads: int = 0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that is here and complete.

    tokenizer_json: Hugging Face `tokenizers` format. chat_template: Jinja, None where the model has none.
    bos_token: text of the beginning token for the template, "" where there is none. add_bos: text prompts start
    with it. digest: 16 bytes over weights, architecture and tokenizer (KV dtype is mixed in by the engine).
    """

    name: str
    config: ModelConfig
    tensors: tuple[TensorEntry, ...]
    tokenizer_json: Path
    chat_template: str | None
    bos_token: str
    eos_token: str
    add_bos: bool
    stop_ids: tuple[int, ...]
    digest: bytes

    @property
    def vocabulary(self) -> Vocabulary:
        """What the engine knows of tokens; text is the tokenizer's."""
        return Vocabulary(self.config.vocab_size, frozenset(self.stop_ids))
