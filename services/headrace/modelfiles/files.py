"""ModelFiles: everything read from a model's files before a weight is touched. No torch here."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers of a decoder-only transformer, under Hugging Face's meaning of each.

    architecture: "llama". rope_theta: base of the default rotary embedding.
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


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor's bytes stand. name: Hugging Face's (`model.layers.0.self_attn.q_proj.weight`).

    encoding: "F32", "F16", "BF16", "Q8_0" or "Q4_1" (ggml's block formats). shape: [out, in] row-major.
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
