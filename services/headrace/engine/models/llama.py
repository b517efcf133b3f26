"""Llama 2 and 3 (arXiv 2307.09288, 2407.21783), and what is built alike: grouped queries, gated feed-forward.

Untied or tied head, attention and feed-forward biases, and every rotary variant come with the configuration.
"""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_llama(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm."""
    return load_pre_norm(config, weights, length)
