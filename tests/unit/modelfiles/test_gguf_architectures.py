"""GGUF files of each architecture, written with llama.cpp's own names and row order, against the same safetensors."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from fixtures.gguf_writer import F32, Tensor, gguf_bytes, tiny_metadata, tokens

from headrace.engine.weights.decode import read_tensor
from headrace.modelfiles.architecture import expected_shapes
from headrace.modelfiles.files import ModelConfig
from headrace.modelfiles.resolve import resolve

Floats = npt.NDArray[np.float32]

LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=len(tokens()),
    hidden_size=32,
    intermediate_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    norm_eps=1e-6,
    rope_theta=1_000_000.0,
    max_position=64,
    tied_embeddings=False,
)
CONFIGS = {
    "llama": LLAMA,
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True),
    "qwen3": replace(LLAMA, architecture="qwen3", tied_embeddings=True),
}


def _metadata(config: ModelConfig) -> dict[str, Any]:
    name = config.architecture
    numbers = {
        "block_count": config.layers,
        "context_length": config.max_position,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_theta,
    }
    plain = {key: value for key, value in tiny_metadata().items() if not key.startswith("llama.")}
    return plain | {"general.architecture": name} | {f"{name}.{key}": value for key, value in numbers.items()}


def _write(path: Path, config: ModelConfig, weights: Mapping[str, Floats]) -> Path:
    kinds = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[config.architecture], config.layers)
    tensors = []
    for name, values in weights.items():
        if config.architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.heads if "q_proj" in name else config.kv_heads
            # llama.cpp's converter: halves of a head interleaved.
            values = values.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensors.append(Tensor(str(written), values.shape, F32, values.tobytes()))
    path.write_bytes(gguf_bytes(_metadata(config), tensors))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_is_found_and_put_right(tmp_path: Path, name: str) -> None:
    config, noise = CONFIGS[name], np.random.default_rng(3)
    weights = {
        tensor: noise.standard_normal(shape).astype(np.float32) for tensor, shape in expected_shapes(config).items()
    }
    files = resolve(str(_write(tmp_path / "m.gguf", config, weights)), tmp_path / "cache")
    assert files.config == config
    assert {entry.name for entry in files.tensors} == weights.keys()
    for entry in files.tensors:
        np.testing.assert_array_equal(read_tensor(entry), weights[entry.name])
