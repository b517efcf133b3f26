"""How long `headrace up` takes to its first streamed token, with the model cached. Run by `make bench`.

    PYTHONPATH=tests python tests/bench/first_token.py [RUNS [FLAG OF up ...]]

With `--local 1` after the number of runs: of one worker that does both.

Prints a table: each run's seconds to the ready line and to the first text of a streamed chat, and the medians.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import openai
from fixtures.cluster import running

GOAL_S = 10.0


def measure(flags: list[str]) -> tuple[float, float]:
    """Seconds from starting the command to its ready line, and to the first text."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), *flags) as cluster:
        ready = time.monotonic() - began
        with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=60, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="smollm2-135m",
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                stream=True,
                max_tokens=8,
            )
            next(event for event in stream if event.choices and event.choices[0].delta.content)
            first = time.monotonic() - began
            for _ in stream:
                pass
    return ready, first


def main(runs: int, flags: list[str]) -> int:
    measured = [measure(flags) for _ in range(runs)]
    print("| run | ready, s | first streamed token, s |")
    print("|---|---|---|")
    for number, (ready, first) in enumerate(measured, start=1):
        print(f"| {number} | {ready:.1f} | {first:.1f} |")
    ready, first = (statistics.median(column) for column in zip(*measured, strict=True))
    print(f"| median | {ready:.1f} | {first:.1f} (goal {GOAL_S:.0f}) |")
    return 0 if first <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:]))
