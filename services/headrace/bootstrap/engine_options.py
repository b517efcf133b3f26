"""From a process's configuration to its engine's options."""

from headrace.config import EngineConfig
from headrace.engine.options import EngineOptions


def engine_options(config: EngineConfig, threads: int = 0) -> EngineOptions:
    """threads: of the worker. Raises StartupError for options that exclude each other."""
    return EngineOptions(
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_step_ms=config.max_step_ms,
        block_size=config.block_size,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enable_prefix_caching=config.enable_prefix_caching,
        threads=threads,
        batch_invariant=config.batch_invariant,
        tensor_parallel_size=config.tensor_parallel_size,
        kernels=config.kernels,
        cpu_isa=config.cpu_isa,
        quantization=config.quantization,
        device=config.device,
        enforce_eager=config.enforce_eager,
    )
