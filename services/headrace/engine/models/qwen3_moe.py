"""Qwen 3 MoE (arXiv 2505.09388): Qwen 3 with a mixture of many small experts in most layers."""

from headrace.engine.models.decoder import Block, Decoder
from headrace.engine.models.experts import ExpertNames, take_mixture
from headrace.engine.models.pre_norm import dense, load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig

_NAMES = ExpertNames(gate="gate_proj", up="up_proj", down="down_proj")


def load_qwen3_moe(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm."""
    return load_pre_norm(config, weights, length, block=_block, query_key_norms=True)


def _block(config: ModelConfig, weights: Source[M, V], index: int) -> Block[M, V]:
    if config.experts is None or index in config.experts.dense_layers:
        return dense(config, weights, index)
    return take_mixture(config, weights, f"model.layers.{index}.mlp.", _NAMES)
