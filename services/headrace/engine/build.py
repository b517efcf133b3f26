"""Builds the torch engine for a model's files.

Owns the choice of architecture and the order: check memory, load weights, allocate pages.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog
import torch

from headrace.core.errors import StartupError
from headrace.core.vocabulary import Vocabulary
from headrace.engine.accelerator import Accelerator, pick_accelerator
from headrace.engine.captured_decode import CapturedDecode, can_be_captured
from headrace.engine.device_pages import DevicePages
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
from headrace.engine.runner import Pages, Runner
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

_CPU = torch.device("cpu")
MakeRunner = Callable[[Model, Pages, PagedKv, Sampler], Runner]


def build_engine(
    files: ModelFiles,
    vocabulary: Vocabulary,
    options: EngineOptions,
    runner: MakeRunner = TorchRunner,
    *,
    accelerator: Accelerator | None = None,
) -> Replica:
    """A replica of one rank. Loads the model; takes seconds. runner: what its steps are run by. accelerator: where they
    run; by default what the options name.

    Raises StartupError if it does not fit or is not supported.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    accelerator = accelerator or pick_accelerator(options)
    if accelerator is not None:
        return _on_accelerator(files, vocabulary, options, runner, accelerator)
    size = plan(files, options)
    pages = PageMemory(size.layout, size.num_blocks)
    model = _native_model(files, options, size, pages) or load_model(
        files, DTYPES[size.layout.dtype], size.max_model_len
    )
    return assemble(files, vocabulary, options, size, model=model, pages=pages, runner=runner)


def _on_accelerator(
    files: ModelFiles, vocabulary: Vocabulary, options: EngineOptions, runner: MakeRunner, accelerator: Accelerator
) -> Replica:
    """See build_engine. Weights come first: what loading takes beside them is free again then."""
    size = plan(files, options, accelerator.free_bytes)
    dtype = DTYPES[size.layout.dtype]
    model = load_model(files, dtype, size.max_model_len, device=accelerator.device)
    pages = DevicePages(size.layout, size.num_blocks, accelerator.device)
    return assemble(files, vocabulary, options, size, model=model, pages=pages, runner=runner, accelerator=accelerator)


def plan(files: ModelFiles, options: EngineOptions, free_bytes: int | None = None) -> PoolSize:
    """The pool beside the weights of all ranks. free_bytes: see plan_pool. Raises StartupError if both do not fit."""
    ranks = options.tensor_parallel_size
    if options.quantization == "gguf" and not any(entry.encoding in KEPT_ENCODINGS for entry in files.tensors):
        raise StartupError(
            f"Model {files.name} has no tensors in {', '.join(sorted(KEPT_ENCODINGS))} whose bits could be kept.",
            remedy="Leave out --quantization, or choose int8 or int4.",
        )
    weights = ranks * weight_bytes(files, options.resolved_dtype, ranks, options.quantization)
    size = plan_pool(files.config, options, weights, free_bytes)
    structlog.get_logger().info("engine.kv_pool", arithmetic=size.arithmetic)
    require_memory({"weights": weights, "KV pages": size.num_blocks * size.layout.block_bytes}, free_bytes)
    return size


def assemble(
    files: ModelFiles,
    vocabulary: Vocabulary,
    options: EngineOptions,
    size: PoolSize,
    *,
    model: Model,
    pages: PageMemory | DevicePages,
    runner: MakeRunner = TorchRunner,
    accelerator: Accelerator | None = None,
) -> Replica:
    """The replica around rank 0's `model`. Raises StartupError if it cannot be what the options promise."""
    kv, dtype = _paged_kv(options, size, pages), size.layout.dtype
    kernels, ranks = accelerator.name if accelerator else kernels_name(model), options.tensor_parallel_size
    recipe = options.recipe + rope_recipe(files.config, size.max_model_len)
    if options.batch_invariant:
        rows, context = options.max_num_batched_tokens, size.max_model_len
        require_batch_invariance(model, kv, pages, most_rows=rows, context=context)
        # Bits depend on who computes, with which instructions, and on how many ranks' sums there are.
        recipe += f", {kernels}, {torch.backends.cpu.get_cpu_capability()}, {ranks} ranks"
    digest = model_digest(files, dtype, recipe)
    info = EngineInfo(digest, size.layout, size.num_blocks, size.max_model_len, options.max_num_seqs)
    structlog.get_logger().info(
        "engine.ready",
        model=files.name,
        dtype=dtype,
        blocks=size.num_blocks,
        context=size.max_model_len,
        ranks=ranks,
        kernels=kernels,
    )
    return Replica(
        info,
        vocabulary,
        runner(_captured(model, kv, options, size, accelerator), pages, kv, Sampler(vocabulary)),
        token_budget=options.max_num_batched_tokens,
        prefix_caching=options.enable_prefix_caching,
    )


def _captured(
    model: Model, kv: PagedKv, options: EngineOptions, size: PoolSize, accelerator: Accelerator | None
) -> Model:
    """The model, with its decode steps captured where that is wanted and possible."""
    if accelerator is None or accelerator.make_graph is None or not isinstance(model, Decoder):
        return model
    if not can_be_captured(model):
        structlog.get_logger().info("engine.not_captured", reason="experts are chosen on the host")
        return model
    sequences, context = options.max_num_seqs, size.max_model_len
    return CapturedDecode(model, kv, sequences=sequences, context=context, make_graph=accelerator.make_graph)


def _paged_kv(options: EngineOptions, size: PoolSize, pages: PageMemory | DevicePages) -> PagedKv:
    """Rank 0's pages as its model sees them."""
    layout = replace(size.layout, kv_heads=size.layout.kv_heads // options.tensor_parallel_size)
    memory = pages.pool if isinstance(pages, DevicePages) else torch.from_numpy(pages.bytes)
    return PagedKv(memory, layout, DTYPES[layout.dtype], batch_invariant=options.batch_invariant)


def _native_model(files: ModelFiles, options: EngineOptions, size: PoolSize, pages: PageMemory) -> NativeDecoder | None:
    """The model on native kernels, its matrices packed straight out of the files; None if torch is to compute."""
    if options.kernels == "torch":
        return None
    stored = StoredMatrices()
    decoder = _decoder(files, Weights(files, DTYPES[size.layout.dtype], stored=stored), size.max_model_len)
    return pick_native(decoder, stored, _paged_kv(options, size, pages), options)


def load_model(
    files: ModelFiles, dtype: torch.dtype, length: int, parallel: Parallel = ALONE, device: torch.device = _CPU
) -> Decoder:
    """One rank's share of the model on `device`, for contexts of up to `length` tokens; takes seconds.

    Raises StartupError if the architecture is not supported, the files are broken, or the ranks cannot share it.
    """
    return _decoder(files, Weights(files, dtype, parallel, device=device), length)


def _decoder(files: ModelFiles, weights: Weights, length: int) -> Decoder:
    load = LOADERS.get(files.config.architecture)
    if load is None:
        raise StartupError(
            f"Architecture {files.config.architecture!r} of model {files.name} is not supported.",
            remedy=f"Choose a model of {', '.join(LOADERS)}.",
        )
    return load(files.config, weights, length)
