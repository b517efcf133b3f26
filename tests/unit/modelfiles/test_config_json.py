"""config.json of well-known models, key by key, and what is said of those that ask for more."""

from typing import Any

import pytest
from fixtures.public_configs import PUBLIC

from headrace.modelfiles.config_json import missing_parts, model_config
from headrace.modelfiles.files import Experts, ModelConfig, RopeScaling


def _read(name: str, **changes: Any) -> ModelConfig:
    raw = PUBLIC[name] | changes
    assert missing_parts(raw) == ()
    return model_config(raw)


@pytest.mark.parametrize("name", PUBLIC)
def test_well_known_models_miss_nothing(name: str) -> None:
    config = _read(name)
    assert config.architecture == PUBLIC[name]["model_type"]
    assert len(config.windows) in (0, config.layers)


def test_llama_2_and_3() -> None:
    assert _read("Llama-2-7b") == ModelConfig(
        "llama", 32000, 4096, 11008, 32, 32, 32, 128, 1e-5, 10_000.0, 4096, tied_embeddings=False
    )
    scaling = RopeScaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    three = _read("Llama-3.1-8B")
    assert (three.rope_scaling, three.rope_theta, three.kv_heads) == (scaling, 500_000.0, 8)
    biased = _read("Llama-3.1-8B", attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.out_bias, biased.feed_forward_bias) == (True, True, True)


def test_mistral() -> None:
    assert _read("Mistral-7B-v0.1").windows == (4096,) * 32
    nemo = _read("Mistral-Nemo")
    assert (nemo.windows, nemo.head_dim, nemo.hidden_size // nemo.heads) == ((), 128, 160)


def test_qwen() -> None:
    two = _read("Qwen2.5-7B with yarn")
    assert (two.qkv_bias, two.out_bias, two.windows) == (True, False, ())
    assert (two.rope_scaling.variant, two.rope_scaling.factor) == ("yarn", 4.0)
    assert two.rope_scaling.attention_factor == pytest.approx(1.1386294)
    assert two.max_position == 131_072, "yarn stretches the context that the file states"
    windowed = _read("Qwen2.5-7B with yarn", use_sliding_window=True, max_window_layers=25, sliding_window=4096)
    assert windowed.windows == (0,) * 25 + (4096,) * 3
    three = _read("Qwen3-0.6B")
    assert (three.qkv_bias, three.head_dim, three.tied_embeddings, three.windows) == (False, 128, True, ())
    layers = ["full_attention", "sliding_attention"] * 14
    chosen = _read("Qwen3-0.6B", use_sliding_window=True, sliding_window=64, layer_types=layers)
    assert chosen.windows == (0, 64) * 14


def test_gemma() -> None:
    two = _read("gemma-2-2b")
    assert two.windows == (4096, 0) * 13
    assert (two.attention_scale, two.attention_softcap, two.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert (two.tied_embeddings, two.activation, two.local_rope_theta) == (True, "gelu_tanh", 0.0)
    none = _read("gemma-2-2b", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (none.attention_softcap, none.logit_softcap) == (0.0, 0.0)
    three = _read("gemma-3-1b")
    assert three.windows == ((512,) * 5 + (0,)) * 4 + (512,) * 2
    assert (three.rope_theta, three.local_rope_theta, three.attention_softcap) == (1_000_000.0, 10_000.0, 0.0)
    big = _read("gemma-3 with linear rope")
    assert (big.rope_scaling, big.rope_theta) == (RopeScaling("linear", 8.0), 1_000_000.0)
    assert big.attention_scale == pytest.approx(168**-0.5)


def test_phi() -> None:
    assert _read("Phi-3-mini-4k").windows == (2047,) * 32
    long = _read("Phi-3-mini-128k").rope_scaling
    assert (long.variant, long.original_max_position, len(long.long_factors)) == ("longrope", 4096, 48)
    assert long.attention_factor == pytest.approx(1.1902380714238083)
    for older in ("su", "yarn"):
        scaling = PUBLIC["Phi-3-mini-128k"]["rope_scaling"] | {"type": older}
        assert _read("Phi-3-mini-128k", rope_scaling=scaling).rope_scaling == long
    partial = _read("Phi-4-mini")
    assert (partial.head_dim, partial.rotary_dim, partial.tied_embeddings) == (128, 96, True)


def test_mixtures() -> None:
    mixtral = _read("Mixtral-8x7B")
    assert (mixtral.experts, mixtral.windows) == (Experts(8, 2, 14336, normalised=True), ())
    qwen = _read("Qwen3-30B-A3B")
    assert qwen.experts == Experts(128, 8, 768, normalised=True)
    sparse = _read("Qwen3-30B-A3B", decoder_sparse_step=2, mlp_only_layers=[3], num_hidden_layers=6)
    assert sparse.experts is not None
    assert sparse.experts.dense_layers == (0, 2, 3, 4)


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "Qwen2.5-7B with yarn": ({"rope_scaling": {"type": "mrope"}}, "the rotary embedding 'mrope' in qwen2"),
    "Phi-3-mini-4k": ({"rope_scaling": {"type": "linear"}}, "the rotary embedding 'linear' in phi3"),
    "gemma-3-1b": (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "yarn"},
            }
        },
        "the rotary embedding 'yarn' in layers with a window",
    ),
    "gemma-2-2b": ({"hidden_activation": "gelu"}, "the activation 'gelu'"),
    "Llama-2-7b": ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights (fp8)"),
    "Qwen3-0.6B": ({"layer_types": ["chunked_attention"] * 28}, "layers of type 'chunked_attention'"),
    "Mistral-Nemo": ({"model_type": "mistral3"}, "the architecture 'mistral3'"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_has_a_name(name: str) -> None:
    changes, part = MISSING[name]
    assert missing_parts(PUBLIC[name] | changes) == (part,)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "Llama-3.1-8B": ({"num_key_value_heads": 5}, "no multiple of 5"),
    "Phi-4-mini": ({"partial_rotary_factor": 0.5}, "48 short and 48 long factors for 32 frequencies"),
    "Qwen3-30B-A3B": ({"num_experts_per_tok": 129}, "129 of 128 experts"),
    "gemma-3-1b": ({"layer_types": ["full_attention"]}, "1 layer_types for 26 layers"),
    "Mixtral-8x7B": ({"vocab_size": -1}, "vocab_size is -1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_cannot_be_right(name: str) -> None:
    changes, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        model_config(PUBLIC[name] | changes)
