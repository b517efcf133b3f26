"""Gemma 2 (arXiv 2408.00118): Gemma with soft-capped scores and logits, and a window in every other layer."""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.gemma import load_gemma
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_gemma2(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_gemma. Pages outside a window stay, hidden by the mask."""
    return load_gemma(config, weights, length, query_key_norms=False)
