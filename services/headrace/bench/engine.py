"""`headrace bench engine`: what a worker's engine does on this machine, against what the machine can do.

Owns the order: ceilings, engine, prompts, answers, report. The engine is a worker's, without its service: no HTTP, no
router, no transfer.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from headrace.bench.arithmetic import Matrices, Shape, matrices_of
from headrace.bench.ceilings import higher, measure_ceilings
from headrace.bench.drive import Driver, Effort, Timed
from headrace.bench.machine import this_machine
from headrace.bench.report import Case, Limits, Report, as_json, print_report, row_of
from headrace.bench.watched_runner import WatchedRunner
from headrace.core.blocks import blocks_for
from headrace.core.errors import StartupError
from headrace.core.layout import DTYPE_BYTES, KvLayout
from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.model import Model
from headrace.engine.native.build import choose_instruction_set
from headrace.engine.options import EngineOptions
from headrace.engine.runner import Pages
from headrace.engine.sample import Sampler
from headrace.engine.weights.load import DTYPES
from headrace.modelfiles.files import ModelConfig, ModelFiles
from headrace.modelfiles.resolve import resolve
from headrace_kernels import native
from headrace_kernels.native import Format, Matrix

_FLOATS = frozenset({Format.F32, Format.BF16})


@dataclass(frozen=True, slots=True)
class EngineBench:
    """batches, contexts: of answers, each with each, in sequences and tokens. prompts: their lengths."""

    model: str
    cache_dir: Path
    options: EngineOptions
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    as_json: bool
    effort: Effort = field(default_factory=Effort)


def run(bench: EngineBench) -> int:
    """Measure and print. Raises StartupError for what the model or the memory has no room for, or the kernels lack."""
    files = resolve(bench.model, bench.cache_dir)
    bench = _fitted(bench, files.config)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        report = _measured(bench, files, progress)
    if bench.as_json:
        print(json.dumps(as_json(report), indent=2))
    else:
        print_report(report, Console())
    return 0


def _fitted(bench: EngineBench, config: ModelConfig) -> EngineBench:
    """With an engine that has the slots, and the pages, for all that is asked."""
    longest = max(bench.contexts, default=0) + bench.effort.decoded + 2, max(bench.prompts, default=0) + 1
    if max(longest) > config.max_position:
        raise StartupError(
            f"Contexts of {max(longest)} tokens, answers included, exceed the model's {config.max_position}.",
            remedy="Lower --context and --prefill.",
        )
    options, most = bench.options, max(bench.batches, default=1)
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, options.block_size, options.resolved_dtype)
    blocks = most * (blocks_for(longest[0], options.block_size) + 1)
    blocks = max(blocks, blocks_for(longest[1], options.block_size) + 1)
    options = replace(
        options,
        max_num_seqs=max(most, 1),
        max_num_batched_tokens=max(most, options.max_num_batched_tokens),
        max_model_len=max(longest),
        kv_cache_memory_bytes=blocks * layout.block_bytes,
        enable_prefix_caching=False,
    )
    return replace(bench, options=options)


def _measured(bench: EngineBench, files: ModelFiles, progress: Progress) -> Report:
    options, dtype = bench.options, bench.options.resolved_dtype
    threads = options.threads or len(os.sched_getaffinity(0))
    cases = [*(Case("prefill", 1, length) for length in bench.prompts)]
    cases += [Case("decode", batch, context) for context in bench.contexts for batch in bench.batches]
    task = progress.add_task("ceilings", total=3 + len(cases))
    choose_instruction_set(options)
    machine, before = this_machine(), measure_ceilings(threads, DTYPES[dtype])
    progress.update(task, advance=1, description="engine")
    driver, runner = _driver(files, options, bench.effort)
    timed: list[tuple[Case, Timed]] = []
    for case in cases:
        progress.update(task, advance=1, description=f"{case.work} {case.batch} x {case.context}")
        prompt = case.work == "prefill"
        timed.append((case, driver.prefill(case.context) if prompt else driver.decode(case.batch, case.context)))
    progress.update(task, advance=1, description="ceilings")
    # Once more, for the machine may have been slower before than it was meanwhile.
    ceilings = higher(before, measure_ceilings(threads, DTYPES[dtype]))
    shape = Shape.of(files.config, _matrices(files.config, runner.matrices, DTYPE_BYTES[dtype]), DTYPE_BYTES[dtype])
    formats = sorted({matrix.format for matrix in runner.matrices})
    limits = Limits(ceilings.bandwidth, ceilings.product_rate(not _FLOATS.issuperset(formats)))
    return Report(
        model=files.name,
        kernels=f"native {native.instruction_set()}" if runner.programs else "torch",
        dtype=dtype,
        formats=[each.name.lower() for each in formats] or [dtype],
        threads=threads,
        machine=machine,
        ceilings=ceilings,
        limits=limits,
        rows=[row_of(case, measured, shape, limits) for case, measured in timed],
    )


def _driver(files: ModelFiles, options: EngineOptions, effort: Effort) -> tuple[Driver, WatchedRunner]:
    runners: list[WatchedRunner] = []

    def watched(model: Model, pages: Pages, sampler: Sampler) -> WatchedRunner:
        runners.append(WatchedRunner(model, pages, sampler))
        return runners[-1]

    vocabulary = Vocabulary(files.config.vocab_size, frozenset())
    engine = build_engine(files, vocabulary, options, watched)
    return Driver(engine, runners[0], vocabulary.size, effort), runners[0]


def _matrices(config: ModelConfig, packed: Sequence[Matrix], value_bytes: int) -> Matrices:
    """As the native kernels have them `packed`; else as many as there are, of `value_bytes` each."""
    counted = matrices_of(config, value_bytes)
    if not packed:
        return counted
    *layers, head = packed
    return replace(counted, layer_bytes=sum(matrix.bytes for matrix in layers), head_bytes=head.bytes)
