"""Builds the torch engine for a model's files.

Owns the choice of architecture and the order: check memory, load weights, allocate pages.
"""

import structlog
import torch

from headrace.core.errors import StartupError
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import EngineInfo
from headrace.engine.models.llama import Llama
from headrace.engine.options import EngineOptions, model_digest, plan_pool, require_memory
from headrace.engine.page_memory import PageMemory
from headrace.engine.replica import Replica
from headrace.engine.torch_runner import TorchRunner
from headrace.engine.weights.load import DTYPES, Weights, weight_bytes
from headrace.modelfiles.files import ModelFiles

_ARCHITECTURES = {"llama": Llama}


def build_engine(files: ModelFiles, vocabulary: Vocabulary, options: EngineOptions) -> Replica:
    """Loads the model; takes seconds. Raises StartupError if it does not fit or is not supported."""
    architecture = _ARCHITECTURES.get(files.config.architecture)
    if architecture is None:
        raise StartupError(
            f"Architecture {files.config.architecture!r} of model {files.name} is not supported.",
            remedy=f"Choose a model of {', '.join(_ARCHITECTURES)}.",
        )
    if options.threads:
        torch.set_num_threads(options.threads)
    size = plan_pool(files.config, options)
    dtype = DTYPES[size.layout.dtype]
    pool_bytes = size.num_blocks * size.layout.block_bytes
    require_memory({"weights": weight_bytes(files, dtype), "KV pages": pool_bytes})
    model = architecture(files.config, Weights(files, dtype), size.max_model_len, dtype)
    runner = TorchRunner(model, PageMemory(size.layout, size.num_blocks), dtype)
    digest = model_digest(files, size.layout.dtype)
    info = EngineInfo(digest, size.layout, size.num_blocks, size.max_model_len, options.max_num_seqs)
    structlog.get_logger().info(
        "engine.ready", model=files.name, dtype=size.layout.dtype, blocks=size.num_blocks, context=size.max_model_len
    )
    return Replica(
        info,
        vocabulary,
        runner,
        token_budget=options.max_num_batched_tokens,
        prefix_caching=options.enable_prefix_caching,
    )
