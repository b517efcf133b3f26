"""The architectures that there are, by their names in ModelConfig."""

from typing import Protocol

from headrace.core.errors import StartupError
from headrace.engine.models.decoder import Decoder
from headrace.engine.models.gemma2 import load_gemma2
from headrace.engine.models.gemma3 import load_gemma3
from headrace.engine.models.llama import load_llama
from headrace.engine.models.mistral import load_mistral
from headrace.engine.models.mixtral import load_mixtral
from headrace.engine.models.phi3 import load_phi3
from headrace.engine.models.qwen2 import load_qwen2
from headrace.engine.models.qwen3 import load_qwen3
from headrace.engine.models.qwen3_moe import load_qwen3_moe
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig, ModelFiles


class Loader(Protocol):
    """Puts a decoder together; see load_pre_norm."""

    def __call__(self, config: ModelConfig, weights: Source[M, V], length: int) -> Decoder[M, V]: ...


LOADERS: dict[str, Loader] = {
    "llama": load_llama,
    "mistral": load_mistral,
    "qwen2": load_qwen2,
    "qwen3": load_qwen3,
    "gemma2": load_gemma2,
    "gemma3_text": load_gemma3,
    "phi3": load_phi3,
    "mixtral": load_mixtral,
    "qwen3_moe": load_qwen3_moe,
}


def load_decoder(files: ModelFiles, weights: Source[M, V], length: int) -> Decoder[M, V]:
    """For contexts of up to `length` tokens. Raises StartupError if the architecture is not supported, the files are
    broken, or the ranks cannot share it."""
    return loader_of(files)(files.config, weights, length)


def loader_of(files: ModelFiles) -> Loader:
    """Raises StartupError if the architecture is not supported."""
    load = LOADERS.get(files.config.architecture)
    if load is None:
        raise StartupError(
            f"Architecture {files.config.architecture!r} of model {files.name} is not supported.",
            remedy=f"Choose a model of {', '.join(LOADERS)}.",
        )
    return load
