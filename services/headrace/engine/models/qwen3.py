"""Qwen 3 (arXiv 2505.09388): Llama with norms of each query and key head, which may be of any size."""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_qwen3(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm."""
    return load_pre_norm(config, weights, length, query_key_norms=True)
