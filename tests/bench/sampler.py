"""The sampler's price of one step, against the argmax it cannot do without. Run by `make bench`.

    PYTHONPATH=tests python tests/bench/sampler.py [REPEATS]

Prints a table: the fewest milliseconds of CPU time on one thread for 1, 8 and 32 rows of a vocabulary of 49,152, with
numpy's row kernels and, where they are built, with the native ones; and for 32 rows with the faster ones the ratio to
numpy's argmax of the same logits in the same run. The logits spread like the small model's: 4
around their mean, the best 23 above it.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.engine.history import TokenHistory
from headrace.engine.native.sampling import NativeRows
from headrace.engine.row_kernels import NumpyRows, RowKernels
from headrace.engine.runner import Draw
from headrace.engine.sample import Sampler
from headrace_kernels import native

SIZE = 49_152
ROWS = (1, 8, 32)
CHAT = SamplingParams(temperature=0.7, top_p=0.9, seed=1)
EVERYTHING = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    top_k=50,
    min_p=0.01,
    presence_penalty=0.5,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    logit_bias=tuple((token * 31, 0.5) for token in range(300)),
    allowed_token_ids=tuple(range(0, SIZE, 2)),
    bad_word_ids=tuple((token, token + 1, token + 2) for token in range(100)),
    min_tokens=1000,
    seed=1,
    stop_token_ids=(5, 6),
    logprobs=5,
)
KINDS: dict[str, tuple[SamplingParams, ...]] = {
    "greedy": (SamplingParams(temperature=0.0),),
    "temperature 1": (SamplingParams(seed=1),),
    "top_p 0.9": (CHAT,),
    "top_k 50": (SamplingParams(top_k=50, seed=1),),
    "greedy, logprobs 5": (SamplingParams(temperature=0.0, logprobs=5),),
    "greedy, three penalties": (
        SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1),
    ),
    "every parameter": (EVERYTHING,),
    "a quarter each: greedy, temperature 1, top_p 0.9, every parameter": (
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        CHAT,
        EVERYTHING,
    ),
}


def logits_of(rows: int) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(0)
    logits = random.standard_normal((rows, SIZE)) * 3.8
    for row in logits:  # a few tokens stand out, as a language model's do
        row[random.integers(0, SIZE, 40)] += random.exponential(5.0, 40)
    return logits.astype(np.float32)


def draws_of(rows: int, kind: tuple[SamplingParams, ...]) -> list[Draw]:
    """Sequences of 1,000 prompt and 200 generated tokens."""
    random = np.random.default_rng(1)
    histories = [TokenHistory(random.integers(0, SIZE, 1200).tolist(), 1000) for _ in range(rows)]
    return [Draw(kind[row % len(kind)], 0, history) for row, history in enumerate(histories)]


def cpu_ms(step: Callable[[npt.NDArray[np.float32]], object], logits: npt.NDArray[np.float32], repeats: int) -> float:
    """CPU time of `step` on logits that it may overwrite, each time a fresh copy.

    The least of all repeats: whatever else runs on the machine only adds to it.
    """
    took = []
    for _ in range(repeats + 2):
        rows = logits.copy()
        began = time.process_time()
        step(rows)
        took.append(time.process_time() - began)
    return min(took[2:]) * 1e3  # the first ones also make rules and counts


def sampler_ms(rows: int, kind: tuple[SamplingParams, ...], kernels: RowKernels, repeats: int) -> float:
    """One step of sequences that each got a token since the last."""
    sampler, draws = Sampler(Vocabulary(SIZE, frozenset({0, 2})), kernels), draws_of(rows, kind)

    def step(logits: npt.NDArray[np.float32]) -> None:
        for draw in draws:
            draw.history.tokens.append(len(draw.history.tokens))
        sampler.sample(logits, draws)

    return cpu_ms(step, logits_of(rows), repeats)


def main(repeats: int) -> None:
    torch.set_num_threads(1)
    floor = {rows: cpu_ms(lambda logits: logits.argmax(axis=1), logits_of(rows), repeats) for rows in ROWS}
    by: dict[str, RowKernels] = {"numpy": NumpyRows()}
    if native.instruction_set() is not None:
        by["native"] = NativeRows()
    print(f"| ms of {', '.join(map(str, ROWS))} rows | {' | '.join(by)} | of argmax |")
    print("|---" * (len(by) + 2) + "|")
    print(f"| argmax | {shown(floor)} |" + " |" * (len(by) - 1) + " 1 |")
    for name, kind in KINDS.items():
        took = [{rows: sampler_ms(rows, kind, kernels, repeats) for rows in ROWS} for kernels in by.values()]
        print(f"| {name} | {' | '.join(map(shown, took))} | {min(one[32] for one in took) / floor[32]:.1f} |")


def shown(took: dict[int, float]) -> str:
    return ", ".join(f"{took[rows]:.2f}" for rows in ROWS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
