"""Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in every layer."""

from headrace.engine.models.decoder import Block, Decoder
from headrace.engine.models.experts import ExpertNames, take_mixture
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig

_NAMES = ExpertNames(gate="w1", up="w3", down="w2")


def load_mixtral(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm."""
    return load_pre_norm(config, weights, length, block=_mixture)


def _mixture(config: ModelConfig, weights: Source[M, V], index: int) -> Block[M, V]:
    return take_mixture(config, weights, f"model.layers.{index}.block_sparse_moe.", _NAMES)
