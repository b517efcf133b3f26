"""What batch-invariant mode costs: steps of the engine in both modes, one after the other. Run by `make bench`.

    PYTHONPATH=tests python tests/bench/batch_invariant.py [ROUNDS]

Prints a table of tokens a second, medians over the rounds, and their ratio. In float32, for which torch has fast
products on every processor, and counting the processor time of one thread, so that other work matters less.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from fixtures.engine_driver import make_job

from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.engine.replica import Replica
from headrace.modelfiles.resolve import resolve

OPTIONS = EngineOptions(dtype="float32", threads=1, enable_prefix_caching=False, kernels="torch")
MODES = {"default": False, "batch-invariant": True}
PROMPTS = (128, 1024)
STREAMS = (1, 8, 32)
CONTEXT, STEPS = 200, 8


def tokens(salt: int, count: int) -> tuple[int, ...]:
    return tuple(1000 + (salt * 7919 + index * 131) % 40_000 for index in range(count))


def prefill(engine: Replica, salt: int, count: int) -> float:
    """Tokens a second of one prompt, in chunks of the budget."""
    engine.add(make_job(f"p{salt}", tokens(salt, count), max_tokens=1))
    began = time.process_time()
    while not engine.step().idle:
        pass
    return count / (time.process_time() - began)


def decode(engine: Replica, salt: int, streams: int) -> float:
    """Tokens a second of all streams together, each behind a prompt of its own."""
    jobs = [make_job(f"d{salt}-{index}", tokens(salt + index, CONTEXT), max_tokens=64) for index in range(streams)]
    for job in jobs:
        engine.add(job)
    waiting = {job.key for job in jobs}
    while waiting:
        waiting -= {one.key for one in engine.step().sampled}
    began = time.process_time()
    for _ in range(STEPS):
        engine.step()
    speed = streams * STEPS / (time.process_time() - began)
    for job in jobs:
        engine.remove(job.key)
    return speed


def main(rounds: int) -> int:
    files = resolve("smollm2-135m", Path("~/.cache/headrace").expanduser())
    vocabulary = Vocabulary(files.config.vocab_size, frozenset())
    engines = {
        name: build_engine(files, vocabulary, replace(OPTIONS, batch_invariant=on)) for name, on in MODES.items()
    }
    cases = {f"prefill of {count}": (prefill, count) for count in PROMPTS}
    cases |= {f"decode x {streams}": (decode, streams) for streams in STREAMS}
    print(f"| tokens/s | {' | '.join(MODES)} | ratio |\n|---|---|---|---|")
    for case, (measure, size) in cases.items():
        speeds: dict[str, list[float]] = {name: [] for name in MODES}
        for salt in range(rounds):
            for name, engine in engines.items():
                speeds[name].append(measure(engine, 1000 * salt, size))
        plain, invariant = (statistics.median(speeds[name]) for name in MODES)
        print(f"| {case} | {plain:.0f} | {invariant:.0f} | {invariant / plain:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
