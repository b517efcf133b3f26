"""Qwen 2 and 2.5 (arXiv 2407.10671, 2412.15115): Llama with biases of queries, keys and values.

Some checkpoints give their upper layers a sliding window.
"""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_qwen2(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm. Pages outside a window stay, hidden by the mask."""
    return load_pre_norm(config, weights, length)
