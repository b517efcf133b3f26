"""`headrace bench`: configuration in, one measurement out."""

from headrace.bench.engine import EngineBench
from headrace.bench.engine import run as run_engine
from headrace.bench.handoff import HandoffBench
from headrace.bench.handoff import run as run_handoff
from headrace.config_bench import BenchConfig
from headrace.core.ticket import UNIT_BLOCKS
from headrace.engine.options import EngineOptions
from headrace.telemetry import logs


def run(config: BenchConfig) -> int:
    if config.action == "engine":
        logs.setup("bench", level="warning")
        return _engine(config)
    # Of transfers that are broken off there would be warnings.
    logs.setup("bench", level="error")
    return _handoff(config)


def _engine(config: BenchConfig) -> int:
    cache = config.cache_dir.expanduser()
    return run_engine(
        EngineBench(
            config.model, cache, _options(config), config.batch, config.context, config.prefill, config.json_output
        )
    )


def _handoff(config: BenchConfig) -> int:
    return run_handoff(
        HandoffBench(
            model=config.model,
            cache_dir=config.cache_dir.expanduser(),
            options=_options(config),
            links=config.links,
            gbits=config.gbits,
            blocks=config.blocks,
            unit_blocks=UNIT_BLOCKS,
            rounds=config.rounds,
            prompt=config.prompt,
            prompts=config.prompts,
            as_json=config.json_output,
        )
    )


def _options(config: BenchConfig) -> EngineOptions:
    return EngineOptions(
        dtype=config.dtype,
        max_num_seqs=1,
        max_num_batched_tokens=config.max_num_batched_tokens,
        threads=config.threads,
        batch_invariant=config.batch_invariant,
        kernels=config.kernels,
        cpu_isa=config.cpu_isa,
        quantization=config.quantization,
    )
