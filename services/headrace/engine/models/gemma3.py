"""The text model of Gemma 3 (arXiv 2503.19786): Gemma with norms of queries and keys.

Five layers of six have a window, and rotate by another base.
"""

from headrace.engine.models.decoder import Decoder
from headrace.engine.models.gemma import load_gemma
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


def load_gemma3(config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """See load_gemma. Pages outside a window stay, hidden by the mask."""
    return load_gemma(config, weights, length, query_key_norms=True)
