"""The table of what can be run: architectures with what their checkpoints consist of, and rotary variants.

Owns the facts that both the readers of model files and `headrace models` go by. The engine has one file for each
architecture; what it computes is its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

ROPE_VARIANTS: Mapping[str, str] = {
    "default": "arXiv 2104.09864",
    "linear": "arXiv 2306.15595",
    "llama3": "Llama 3.1",
    "yarn": "arXiv 2309.00071",
    "longrope": "arXiv 2402.13753",
}
_SCALED = ("default", "linear", "llama3", "yarn")

# Names in config.json, and what they are here.
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}

# Kinds of tokenizers, in `tokenizer.json`.
TOKENIZERS = ("byte-level BPE", "SentencePiece-style BPE")


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """What a checkpoint calls a layer's mixture, and the three matrices of each of its experts."""

    mixture: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Architecture:
    """model_type: in config.json. models: the best known. features: beyond grouped-query attention and a gated
    feed-forward, in words. ropes: keys of ROPE_VARIANTS. gguf: whether its GGUF files are read too. source: where it
    is described.

    The rest is what its checkpoints hold: norms of queries and keys, norms after each block, fused query-key-value and
    gate-up matrices, experts.
    """

    model_type: str
    models: str
    features: str
    source: str
    ropes: tuple[str, ...] = _SCALED
    gguf: bool = False
    query_key_norms: bool = False
    post_norms: bool = False
    fused: bool = False
    experts: ExpertTensors | None = None


_LISTED = (
    Architecture("llama", "Llama 2, 3 to 3.3; SmolLM2; TinyLlama", "optional biases", "arXiv 2407.21783", gguf=True),
    Architecture("mistral", "Mistral 7B, Nemo, Small", "sliding window", "arXiv 2310.06825"),
    Architecture("qwen2", "Qwen 2, 2.5; their distillates", "query, key, value biases", "arXiv 2412.15115", gguf=True),
    Architecture("qwen3", "Qwen 3", "query and key norms", "arXiv 2505.09388", gguf=True, query_key_norms=True),
    Architecture("gemma2", "Gemma 2", "soft-caps, alternating window, post-norms", "arXiv 2408.00118", post_norms=True),
    Architecture(
        "gemma3_text",
        "Gemma 3 (text)",
        "windows with their own rope base, query and key norms, post-norms",
        "arXiv 2503.19786",
        query_key_norms=True,
        post_norms=True,
    ),
    Architecture(
        "phi3",
        "Phi 3, 3.5, 4; their mini models",
        "fused matrices, sliding window, partial rope",
        "arXiv 2404.14219",
        ropes=("default", "longrope"),
        fused=True,
    ),
    Architecture(
        "mixtral",
        "Mixtral 8x7B, 8x22B",
        "mixture of experts",
        "arXiv 2401.04088",
        experts=ExpertTensors("block_sparse_moe", "w1", "w3", "w2"),
    ),
    Architecture(
        "qwen3_moe",
        "Qwen 3 30B-A3B, 235B-A22B",
        "mixture of experts, query and key norms",
        "arXiv 2505.09388",
        query_key_norms=True,
        experts=ExpertTensors("mlp", "gate_proj", "up_proj", "down_proj"),
    ),
)
ARCHITECTURES: Mapping[str, Architecture] = {each.model_type: each for each in _LISTED}
