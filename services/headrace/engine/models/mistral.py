"""Mistral 7B and its like (arXiv 2310.06825): Llama whose every layer may have a sliding window."""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.pre_norm import load_pre_norm
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import ModelConfig


def load_mistral(config: ModelConfig, weights: Weights, length: int) -> Decoder:
    """See load_pre_norm. Pages outside the window stay, hidden by the mask."""
    return load_pre_norm(config, weights, length)
