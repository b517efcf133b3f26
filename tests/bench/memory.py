"""The most memory that a worker of `headrace up --local 1` ever held, with its KV pool written full of prompts.

    PYTHONPATH=tests python tests/bench/memory.py [QUANTIZATION ...]

Takes half a minute each. Prints a table: weights and pool in their own precision, peak resident set (VmHWM) after the
load and after the prompts, and the goal: 1.3 x (weights + pool) + 400 MB. By default: bfloat16, gguf, int8, int4.
"""

import re
import sys
import tempfile
from pathlib import Path

import httpx
from fixtures.cluster import Cluster, running

from headrace.engine.weights.size import weight_bytes
from headrace.modelfiles.resolve import resolve

MODEL, CACHE = "smollm2-135m", Path("~/.cache/headrace").expanduser()
POOL = 96 * 2**20
PROMPT_TOKENS = 1000
MISSED = 3  # exit code of a whole table with a goal missed


def measure(quantization: str | None) -> tuple[int, int]:
    """Peak bytes after the load, and after prompts that fill the pool."""
    flags = ["--local=1", f"--kv-cache-memory-bytes={POOL}"]
    flags += [f"--quantization={quantization}"] if quantization else []
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), *flags) as cluster:
        loaded = _peak(cluster)
        for number in range(_prompts(cluster)):
            body = {"model": MODEL, "prompt": [number % 1000 + 100] * PROMPT_TOKENS, "max_tokens": 1}
            httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).raise_for_status()
        return loaded, _peak(cluster)


def _prompts(cluster: Cluster) -> int:
    blocks = cluster.fleet()["workers"][0]["load"]["total_blocks"]
    return int(-(-blocks * 16 // PROMPT_TOKENS))


def _peak(cluster: Cluster) -> int:
    status = Path(f"/proc/{cluster.pid('local-0')}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "Linux says it"
    return int(found[1]) * 1024


def main(quantizations: list[str]) -> int:
    files, missed = resolve(MODEL, CACHE), 0
    print("| matrices | weights, MB | KV pool, MB | peak after load, MB | peak, pool full, MB | goal, MB |")
    print("|---|---|---|---|---|---|")
    for name in quantizations:
        quantization = None if name == "bfloat16" else name
        weights = weight_bytes(files, "bfloat16", quantization=quantization)
        loaded, full = measure(quantization)
        goal = 1.3 * (weights + POOL) + 400e6
        missed += full > goal
        cells = " | ".join(f"{each / 1e6:.0f}" for each in (weights, POOL, loaded, full, goal))
        print(f"| {name} | {cells} |", flush=True)
    return MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["bfloat16", "gguf", "int8", "int4"]))
