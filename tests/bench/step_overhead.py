"""What a decode step costs beside the model's kernels: Python, numpy and the sampler. Takes three minutes.

    PYTHONPATH=tests python tests/bench/step_overhead.py [STEPS]

Prints a table: the parts of a step of 32 greedy streams behind 500 tokens each, medians in ms, over a model whose
logits are fixed and over the small model with the native kernels. A line's time leaves out the lines within it; the
parts are of other steps than the whole, since clocks cost time.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from fixtures.engine_driver import make_job

from headrace.core.layout import KvLayout
from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.engine import EngineInfo, StepOutput
from headrace.engine.logit_row import Logits
from headrace.engine.model_runner import ModelRunner
from headrace.engine.native import decoder
from headrace.engine.native.compile import Compiled
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.options import EngineOptions
from headrace.engine.page_memory import PageMemory
from headrace.engine.replica import Replica
from headrace.engine.sample import Sampler
from headrace.engine.schedule import Schedule
from headrace.modelfiles.resolve import resolve
from headrace.rpc.codec.attach import encode_report
from headrace.worker.outbox import Outbox
from headrace_kernels.native import Program, Step

STREAMS, CONTEXT, VOCABULARY, BUDGET = 32, 500, 49_152, 2048
LAYOUT = KvLayout(layers=1, kv_heads=1, head_dim=16, block_tokens=16, dtype="float32")
NAMES = {
    "kernels": (Program, "run"),
    "schedule": (Schedule, "plan"),
    "spans": (Replica, "_span"),
    "arrays for the kernels": (decoder, "step_arrays"),
    "sampler": (Sampler, "sample"),
    "runner": (ModelRunner, "run"),
    "what came of the spans": (Replica, "_came"),
    "load and KV use": (Replica, "_load"),
    "rest": (Replica, "step"),
}


class Idle:
    """A program without operations."""

    def run(self, step: Step, threads: int) -> None:
        pass


class FixedLogits(NativeDecoder):
    """A decoder whose kernels do nothing and whose logits are always the same."""

    def __init__(self) -> None:
        idle = cast(Program, Idle())
        states = np.zeros((BUDGET, 8), dtype=np.float32)
        super().__init__(Compiled(idle, idle, states, VOCABULARY), LAYOUT.block_tokens, 1)
        self._fixed = np.random.default_rng(0).standard_normal((STREAMS, VOCABULARY)).astype(np.float32)

    def logits(self, rows: Sequence[int]) -> Logits:
        return self._fixed[: len(rows)]


class Parts:
    """Milliseconds of each step that were spent in each of NAMES, and not in another one within it."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {name: [] for name in NAMES}
        self._inner = [0.0]

    def clock(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def clocked(*arguments: object, **options: object) -> object:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                took = time.perf_counter() - began
                self.spent[name][-1] += (took - self._inner.pop()) * 1e3
                self._inner[-1] += took

        return clocked

    def begin_step(self) -> None:
        for spent in self.spent.values():
            spent.append(0.0)


def fixed_engine() -> Replica:
    pages = PageMemory(LAYOUT, STREAMS * 64)
    vocabulary = Vocabulary(VOCABULARY, frozenset())
    runner = ModelRunner(FixedLogits(), pages, Sampler(vocabulary))
    info = EngineInfo(b"", LAYOUT, STREAMS * 64, 1024, STREAMS)
    return Replica(info, vocabulary, runner, token_budget=BUDGET, prefix_caching=True)


def real_engine() -> Replica:
    files = resolve("smollm2-135m", Path("~/.cache/headrace").expanduser())
    options = EngineOptions(max_num_seqs=STREAMS, kernels="native")
    return build_engine(files, Vocabulary(files.config.vocab_size, frozenset()), options)


def start(engine: Replica) -> None:
    """All streams are decoding on return."""
    jobs = [
        make_job(f"s{index}", tuple(3 + (index * 131 + place * 37) % 4000 for place in range(CONTEXT)), max_tokens=500)
        for index in range(STREAMS)
    ]
    for job in jobs:
        engine.add(job)
    waiting = {job.key for job in jobs}
    while waiting:
        waiting -= {one.key for one in engine.step().sampled}


def whole_steps(engine: Replica, steps: int) -> list[float]:
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        took.append((time.perf_counter() - began) * 1e3)
    return took


def parts_of(engine: Replica, steps: int) -> dict[str, float]:
    parts, originals = Parts(), {name: getattr(*place) for name, place in NAMES.items()}
    for name, (owner, attribute) in NAMES.items():
        setattr(owner, attribute, parts.clock(name, originals[name]))
    try:
        for _ in range(steps):
            parts.begin_step()
            engine.step()
    finally:
        for name, (owner, attribute) in NAMES.items():
            setattr(owner, attribute, originals[name])
    return {name: statistics.median(spent) for name, spent in parts.spent.items()}


def report_ms(engine: Replica, steps: int) -> float:
    """From a step's output to the bytes of the router's message, as the worker's event loop does it."""

    async def drive() -> list[float]:
        outbox, took = Outbox("router", engine.step().load), []
        for _ in range(steps):
            output = engine.step()
            began = time.perf_counter()
            await report(outbox, output)
            took.append((time.perf_counter() - began) * 1e3)
        return took

    return statistics.median(asyncio.run(drive()))


async def report(outbox: Outbox, output: StepOutput) -> None:
    for one in output.sampled:
        outbox.token(one.key, 0, one.position, one.token, one.cached_tokens)
    outbox.update(output.load, draining=False, settled=False)
    for events in await outbox.take():
        encode_report(events).SerializeToString()


def main(steps: int) -> int:
    table: list[dict[str, float]] = []
    for make in (fixed_engine, real_engine):
        engine = make()
        start(engine)
        whole = statistics.median(whole_steps(engine, steps))
        parts = parts_of(engine, steps)
        reported = report_ms(engine, steps)
        share = sum(parts.values()) - parts["kernels"] - parts["sampler"]
        shares = {"Python's share: all but kernels and sampler": share}
        table.append({"whole step": whole, **parts, **shares, "report to the router, on the event loop": reported})
    print(f"| {STREAMS} streams behind {CONTEXT} tokens, ms | fixed logits | smollm2-135m |\n|---|---|---|")
    for name in table[0]:
        print(f"| {name} | " + " | ".join(f"{column[name]:.3f}" for column in table) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
