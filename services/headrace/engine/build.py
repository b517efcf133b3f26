"""Builds an engine for a model's files: on the native kernels where they can compute the model, else on torch.

Owns the order: check memory, allocate pages, load weights. torch takes two seconds to import and is, where the native
kernels compute, nobody's need.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import StartupError
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import EngineInfo
from headrace.engine.model import Model
from headrace.engine.model_runner import ModelRunner
from headrace.engine.models.rope import rope_recipe
from headrace.engine.native.build import pick_native
from headrace.engine.options import EngineOptions, PoolSize, model_digest, plan_pool, require_memory
from headrace.engine.page_memory import PageMemory
from headrace.engine.replica import Replica
from headrace.engine.runner import Pages, Runner
from headrace.engine.sample import Sampler
from headrace.engine.self_check import require_batch_invariance
from headrace.engine.weights.formats import KEPT_ENCODINGS
from headrace.engine.weights.size import weight_bytes
from headrace.modelfiles.files import ModelFiles
from headrace_kernels import native

if TYPE_CHECKING:
    from headrace.engine.accelerator import Accelerator

MakeRunner = Callable[[Model, Pages, Sampler], Runner]


@dataclass(frozen=True, slots=True)
class Computing:
    """A model over its pages. kernels: who computes it, for people. bits: what its numbers' bits depend on beside the
    model and the mode."""

    model: Model
    pages: Pages
    kernels: str
    bits: str


def build_engine(
    files: ModelFiles,
    vocabulary: Vocabulary,
    options: EngineOptions,
    runner: MakeRunner = ModelRunner,
    *,
    accelerator: "Accelerator | None" = None,
) -> Replica:
    """A replica of one rank. Loads the model; takes seconds. runner: what its steps are run by. accelerator: where they
    run; by default what the options name.

    Raises StartupError if it does not fit or is not supported.
    """
    if accelerator is not None or options.device != "cpu":
        from headrace.engine.torch_build import on_accelerator  # noqa: PLC0415 - see above

        size, computing = on_accelerator(files, options, accelerator)
    else:
        size = plan(files, options)
        computing = _on_cpu(files, options, size)
    return assemble(files, vocabulary, options, size, computing, runner=runner)


def _on_cpu(files: ModelFiles, options: EngineOptions, size: PoolSize) -> Computing:
    pages = PageMemory(size.layout, size.num_blocks)
    model = pick_native(files, options, size.max_model_len, pages)
    if model is not None:
        kernels = f"native {native.instruction_set()}"
        return Computing(model, pages, kernels, kernels)
    from headrace.engine.torch_build import on_torch  # noqa: PLC0415 - see above

    return on_torch(files, options, size, pages)


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
    computing: Computing,
    *,
    runner: MakeRunner = ModelRunner,
) -> Replica:
    """The replica around rank 0's model. Raises StartupError if it cannot be what the options promise."""
    dtype, ranks, model, pages = size.layout.dtype, options.tensor_parallel_size, computing.model, computing.pages
    recipe = options.recipe + rope_recipe(files.config, size.max_model_len)
    if options.batch_invariant:
        rows, context = options.max_num_batched_tokens, size.max_model_len
        require_batch_invariance(model, pages, blocks=size.num_blocks, most_rows=rows, context=context)
        # Bits depend on who computes, with which instructions, and on how many ranks' sums there are.
        recipe += f", {computing.bits}, {ranks} ranks"
    digest = model_digest(files, dtype, recipe)
    info = EngineInfo(
        digest,
        size.layout,
        size.num_blocks,
        size.max_model_len,
        options.max_num_seqs,
        weights=files.digest,
        recipe=recipe,
        tensor_parallel=ranks,
    )
    structlog.get_logger().info(
        "engine.ready",
        model=files.name,
        dtype=dtype,
        blocks=size.num_blocks,
        context=size.max_model_len,
        ranks=ranks,
        kernels=computing.kernels,
    )
    return Replica(
        info,
        vocabulary,
        runner(model, pages, Sampler(vocabulary)),
        token_budget=options.max_num_batched_tokens,
        prefix_caching=options.enable_prefix_caching,
        max_step_s=options.max_step_ms / 1000,
    )
