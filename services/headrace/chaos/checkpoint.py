"""A model to be struck: a tiny Llama of random weights in Hugging Face's layout, the same for the same seed.

Its answers mean nothing and are exact: whatever computes one of them wrongly changes tokens.
"""

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.modelfiles.pretokenizers import tokenizer_json

_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MERGES = ("h e", "l l", "he ll", "hell o")
_WIDTH, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 96, 2, 8, 4, 16
_POSITIONS = 512
# Wide enough that the best tokens differ clearly.
_SPREAD = 0.2


def make_checkpoint(directory: Path, seed: int = 7) -> None:
    """Write config.json, tokenizer.json and model.safetensors into an existing directory."""
    tokens = _tokens()
    (directory / "config.json").write_text(json.dumps(_config(len(tokens))))
    tokenizer = tokenizer_json("smollm", tokens, _MERGES, range(len(_CONTROL)), ())
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "model.safetensors").write_bytes(_safetensors(_weights(len(tokens), seed)))


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": _WIDTH,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _weights(vocabulary: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    queries, keys = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, _WIDTH)}
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}."
        shapes |= {
            f"{name}self_attn.q_proj.weight": (queries, _WIDTH),
            f"{name}self_attn.k_proj.weight": (keys, _WIDTH),
            f"{name}self_attn.v_proj.weight": (keys, _WIDTH),
            f"{name}self_attn.o_proj.weight": (_WIDTH, queries),
            f"{name}mlp.gate_proj.weight": (_INNER, _WIDTH),
            f"{name}mlp.up_proj.weight": (_INNER, _WIDTH),
            f"{name}mlp.down_proj.weight": (_WIDTH, _INNER),
            f"{name}input_layernorm.weight": (_WIDTH,),
            f"{name}post_attention_layernorm.weight": (_WIDTH,),
        }
    shapes |= {"model.norm.weight": (_WIDTH,), "lm_head.weight": (vocabulary, _WIDTH)}
    noise = np.random.default_rng(seed)
    return {
        name: (noise.standard_normal(shape) * _SPREAD + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def _safetensors(weights: dict[str, npt.NDArray[np.float32]]) -> bytes:
    head: dict[str, object] = {}
    place = 0
    for name, values in weights.items():
        offsets = [place, place + values.nbytes]
        head[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        place += values.nbytes
    header = json.dumps(head).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + b"".join(values.tobytes() for values in weights.values())


def _tokens() -> list[str]:
    """Control tokens, the 256 one-byte tokens of byte-level BPE, and a few merged ones."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    alphabet = [chr(byte) for byte in kept] + [chr(0x100 + place) for place in range(len(moved))]
    return [*_CONTROL, *alphabet, *(merge.replace(" ", "") for merge in _MERGES)]
