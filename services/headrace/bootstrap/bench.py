"""`headrace bench`: configuration in, one measurement out."""

from headrace.bench.engine import EngineBench
from headrace.bench.engine import run as run_engine
from headrace.config_bench import BenchConfig
from headrace.engine.options import EngineOptions
from headrace.telemetry import logs


def run(config: BenchConfig) -> int:
    logs.setup("bench", level="warning")
    options = EngineOptions(
        dtype=config.dtype,
        max_num_seqs=1,
        max_num_batched_tokens=config.max_num_batched_tokens,
        threads=config.threads,
        batch_invariant=config.batch_invariant,
        kernels=config.kernels,
        cpu_isa=config.cpu_isa,
        quantization=config.quantization,
    )
    return run_engine(
        EngineBench(
            config.model,
            config.cache_dir.expanduser(),
            options,
            config.batch,
            config.context,
            config.prefill,
            config.json_output,
        )
    )
