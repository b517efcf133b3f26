"""Mistral 7B and its like (arXiv 2310.06825): Llama whose every layer may have a sliding window."""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_mistral(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_pre_norm. Pages outside the window stay, hidden by the mask."""
    return load_pre_norm(config, weights, length)
