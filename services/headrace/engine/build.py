"""Builds the torch engine for a model's files.

Owns the choice of architecture and the order: check memory, load weights, allocate pages.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog
import torch

from headrace.core.errors import StartupError
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import EngineInfo
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
from headrace.engine.models.rope import rope_recipe
from headrace.engine.native.build import kernels_name, pick_native
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions, PoolSize, model_digest, plan_pool, require_memory
from headrace.engine.page_memory import PageMemory
from headrace.engine.parallel import ALONE, Parallel
from headrace.engine.replica import Replica
from headrace.engine.runner import Runner
from headrace.engine.sample import Sampler
from headrace.engine.self_check import require_batch_invariance
from headrace.engine.torch_runner import Model, TorchRunner
from headrace.engine.weights.formats import KEPT_ENCODINGS
from headrace.engine.weights.load import DTYPES, Weights
from headrace.engine.weights.size import weight_bytes
from headrace.engine.weights.stored import StoredMatrices
from headrace.modelfiles.files import ModelConfig, ModelFiles

LOADERS: dict[str, Callable[[ModelConfig, Weights, int], Decoder]] = {
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


MakeRunner = Callable[[Model, PageMemory, PagedKv, Sampler], Runner]


def build_engine(
    files: ModelFiles, vocabulary: Vocabulary, options: EngineOptions, runner: MakeRunner = TorchRunner
) -> Replica:
    """A replica of one rank. Loads the model; takes seconds. runner: what its steps are run by.

    Raises StartupError if it does not fit or is not supported.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    size = plan(files, options)
    pages = PageMemory(size.layout, size.num_blocks)
    model = _native_model(files, options, size, pages) or load_model(
        files, DTYPES[size.layout.dtype], size.max_model_len
    )
    return assemble(files, vocabulary, options, size, model=model, pages=pages, runner=runner)


def plan(files: ModelFiles, options: EngineOptions) -> PoolSize:
    """The pool beside the weights of all ranks. Raises StartupError if both do not fit."""
    ranks = options.tensor_parallel_size
    if options.quantization == "gguf" and not any(entry.encoding in KEPT_ENCODINGS for entry in files.tensors):
        raise StartupError(
            f"Model {files.name} has no tensors in {', '.join(sorted(KEPT_ENCODINGS))} whose bits could be kept.",
            remedy="Leave out --quantization, or choose int8 or int4.",
        )
    weights = ranks * weight_bytes(files, options.resolved_dtype, ranks, options.quantization)
    size = plan_pool(files.config, options, weights)
    structlog.get_logger().info("engine.kv_pool", arithmetic=size.arithmetic)
    require_memory({"weights": weights, "KV pages": size.num_blocks * size.layout.block_bytes})
    return size


def assemble(
    files: ModelFiles,
    vocabulary: Vocabulary,
    options: EngineOptions,
    size: PoolSize,
    *,
    model: Model,
    pages: PageMemory,
    runner: MakeRunner = TorchRunner,
) -> Replica:
    """The replica around rank 0's `model`. Raises StartupError if it cannot be what the options promise."""
    kv, dtype = _paged_kv(options, size, pages), size.layout.dtype
    recipe = options.recipe + rope_recipe(files.config, size.max_model_len)
    if options.batch_invariant:
        rows, context = options.max_num_batched_tokens, size.max_model_len
        require_batch_invariance(model, kv, pages, most_rows=rows, context=context)
        # Bits depend on who computes, with which instructions, and on how many ranks' sums there are.
        recipe += f", {kernels_name(model)}, {torch.backends.cpu.get_cpu_capability()}, {len(pages.shares)} ranks"
    digest = model_digest(files, dtype, recipe)
    info = EngineInfo(digest, size.layout, size.num_blocks, size.max_model_len, options.max_num_seqs)
    structlog.get_logger().info(
        "engine.ready",
        model=files.name,
        dtype=dtype,
        blocks=size.num_blocks,
        context=size.max_model_len,
        ranks=len(pages.shares),
        kernels=kernels_name(model),
    )
    return Replica(
        info,
        vocabulary,
        runner(model, pages, kv, Sampler(vocabulary)),
        token_budget=options.max_num_batched_tokens,
        prefix_caching=options.enable_prefix_caching,
    )


def _paged_kv(options: EngineOptions, size: PoolSize, pages: PageMemory) -> PagedKv:
    """Rank 0's pages as its model sees them."""
    layout = replace(size.layout, kv_heads=size.layout.kv_heads // len(pages.shares))
    memory = torch.from_numpy(pages.bytes)
    return PagedKv(memory, layout, DTYPES[layout.dtype], batch_invariant=options.batch_invariant)


def _native_model(files: ModelFiles, options: EngineOptions, size: PoolSize, pages: PageMemory) -> NativeDecoder | None:
    """The model on native kernels, its matrices packed straight out of the files; None if torch is to compute."""
    if options.kernels == "torch":
        return None
    stored = StoredMatrices()
    decoder = _decoder(files, Weights(files, DTYPES[size.layout.dtype], stored=stored), size.max_model_len)
    return pick_native(decoder, stored, _paged_kv(options, size, pages), options)


def load_model(files: ModelFiles, dtype: torch.dtype, length: int, parallel: Parallel = ALONE) -> Decoder:
    """One rank's share of the model, for contexts of up to `length` tokens; takes seconds.

    Raises StartupError if the architecture is not supported, the files are broken, or the ranks cannot share it.
    """
    return _decoder(files, Weights(files, dtype, parallel), length)


def _decoder(files: ModelFiles, weights: Weights, length: int) -> Decoder:
    load = LOADERS.get(files.config.architecture)
    if load is None:
        raise StartupError(
            f"Architecture {files.config.architecture!r} of model {files.name} is not supported.",
            remedy=f"Choose a model of {', '.join(LOADERS)}.",
        )
    return load(files.config, weights, length)
