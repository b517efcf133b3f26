"""Every kernel on a CUDA machine: its tests, the oracle tests, and how much of the GPU it uses. Run by `make gpu`.

    PYTHONPATH=tests python tests/bench/gpu.py

Prints a table of times beside what the same GPU copies and multiplies at in the same run, medians of cold launches,
and one of decode steps of a small model, eager and captured.
Without a GPU it says so, and measures nothing.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bench import gpu_decode
from bench.gpu_cases import FULL, Case, cases

from headrace.engine.cuda_graph import CudaGraphs
from headrace.modelfiles.resolve import resolve

TESTS = ("tests/kernels", "tests/oracle")
_ROUNDS, _WARM_UP = 20, 3
_COPIED_BYTES = 1 << 30
_SQUARE = 8192
# The model of the oracle tests, which fetch it; small, so that launches weigh most.
_MODEL, _CACHE = "smollm2-135m", Path("~/.cache/headrace")
_STREAMS, _CONTEXT = (1, 8, 32), 1024
# More than any level-2 cache holds.
_COLD_BYTES = 1 << 28

HEAD = "| kernel | shape | us | GB/s | of copying | TFLOP/s | of matmul |\n|---|---|---|---|---|---|---|"


def row(case: Case, seconds: float, *, copied: float, multiplied: float) -> str:
    """A line of the table. copied, multiplied: what the GPU reaches, in bytes and operations a second."""
    speed, rate = case.bytes / seconds, case.flops / seconds
    products = f"{rate / 1e12:.1f} | {rate / multiplied:.0%}" if case.flops else "|"
    moved = f"{speed / 1e9:.0f} | {speed / copied:.0%}"
    return f"| {case.kernel} | {case.shape} | {seconds * 1e6:.1f} | {moved} | {products} |"


def timed(launch: Callable[[], object], cold: torch.Tensor) -> float:
    """Median seconds of a launch that finds nothing of its tensors in caches."""
    for _ in range(_WARM_UP):
        launch()
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cold.zero_()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    return statistics.median(seconds)


def print_table() -> None:
    device = torch.device("cuda")
    cold = torch.empty(_COLD_BYTES, dtype=torch.uint8, device=device)
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * _COPIED_BYTES / timed(partial(target.copy_, source), cold)
    square = torch.randn(_SQUARE, _SQUARE, dtype=torch.bfloat16, device=device)
    multiplied = 2 * _SQUARE**3 / timed(partial(torch.mm, square, square), cold)
    del source, target, square
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16.")
    print(f"It copies at {copied / 1e9:.0f} GB/s and multiplies matrices at {multiplied / 1e12:.0f} TFLOP/s.\n\n{HEAD}")
    for case in cases(FULL, device):
        print(row(case, timed(case.launch, cold), copied=copied, multiplied=multiplied), flush=True)


def print_decode_steps() -> None:
    files = resolve(_MODEL, _CACHE.expanduser())
    print(f"\n{gpu_decode.HEAD}")
    for step in gpu_decode.decode_steps(files, torch.device("cuda"), CudaGraphs(), _STREAMS, _CONTEXT):
        times = (gpu_decode.median_seconds(run) for run in (step.eager, step.captured))
        print(step.row(*times), flush=True)


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing was run and nothing is claimed.")
        return 0
    # A test of a kernel takes longer on its first launch, which compiles it.
    tests = subprocess.run([sys.executable, "-m", "pytest", "--timeout=600", *TESTS], check=False)
    print_table()
    print_decode_steps()
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
