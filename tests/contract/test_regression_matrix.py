"""The regression matrix: what must never change an answer, every combination of it, from HTTP to pages and back.

In batch-invariant mode ids, text, logprobs, finish reason and usage are equal whatever was cached, however large the
chunks are, whether pages were taken away in the middle, and whatever else ran.
"""

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fixtures.gguf_writer import tokens as vocabulary
from fixtures.measured import TORCH_KEEPS_ITS_BITS
from matrix_cluster import Cluster, byte_files, cluster, engines

from headrace.modelfiles.files import ModelFiles
from headrace_kernels.native import instruction_set

BATCH = 7
ANSWER = 12
_TOKENS = vocabulary()
_TEXT = "It was a bright cold day in April, and the clocks"
# Letters, and both halves of é, of which the first is what a prompt may end with.
LETTERS = [_TOKENS.index(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
HALVES = [_TOKENS.index(half) for half in ("Ã", "©")]
PROMPTS = {
    "letter": [_TOKENS.index("Ġ" if letter == " " else letter) for letter in _TEXT],
    "half a character": [*(_TOKENS.index("Ġ" if letter == " " else letter) for letter in _TEXT), HALVES[0]],
}
PREFIXES = ("miss", "hit", "full hit")


@dataclass(frozen=True)
class Row:
    """A request. What it asks for must come out the same in every column."""

    prompt: str
    stops: bool
    stream: bool
    logprobs: bool

    def body(self, stops: dict[str, list[str]], salt: str) -> dict[str, Any]:
        wanted: dict[str, Any] = {"logprobs": 3} if self.logprobs else {}
        if self.stops:
            wanted["stop"] = stops[self.prompt]
        return {**_body(PROMPTS[self.prompt], salt), **wanted, "stream": self.stream}


ROWS = [Row(*values) for values in itertools.product(PROMPTS, (False, True), (False, True), (False, True))]


def _body(prompt: list[int], salt: str, **fields: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": ANSWER,
        "temperature": 0.9,
        "seed": 11,
        "allowed_token_ids": LETTERS + HALVES,
        "return_token_ids": True,
        "cache_salt": salt,
        **fields,
    }


@dataclass(frozen=True)
class Expected:
    """Every row's answer, one at a time, nothing cached, in large chunks. stops: words of each prompt's answer.

    kernels: that computed it; bits of different ones differ.
    """

    kernels: str
    stops: dict[str, list[str]]
    answers: dict[Row, dict[str, Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return byte_files(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module", params=["native", pytest.param("torch", marks=TORCH_KEEPS_ITS_BITS)])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    return str(request.param)


@pytest.fixture(scope="module")
def expected(files: ModelFiles, kernels: str) -> Expected:
    async def ask() -> Expected:
        async with cluster(files, *engines(files, kernels=kernels, budget=128, preempted=False)) as here:
            whole = {name: await here.ask(**_body(prompt, f"stop {name}")) for name, prompt in PROMPTS.items()}
            stops = {name: [_word(answer["text"])] for name, answer in whole.items()}
            answers = {row: _told(await here.ask(**row.body(stops, f"{row}"))) for row in ROWS}
            await here.quiet()
            return Expected(kernels, stops, answers)

    return asyncio.run(ask())


def _word(text: str) -> str:
    """Two letters in the middle of an answer, the first time that they stand there."""
    pairs = (text[at : at + 2] for at in range(3, len(text) - 3))
    return next(pair for pair in pairs if pair.isascii() and text.index(pair) >= 3)


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal."""
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {name: answer[name] for name in ("text", "token_ids", "logprobs", "finish_reason")} | {"usage": usage}


def test_the_rows_are_worth_comparing(expected: Expected) -> None:
    """Streams say what wholes say, logprobs change nothing else, stop words end answers early."""
    for row, answer in expected.answers.items():
        plain = expected.answers[replace(row, stream=False, logprobs=False)]
        assert {**answer, "logprobs": None} == plain
        assert (answer["logprobs"] is not None) is row.logprobs
        assert answer["finish_reason"] == ("stop" if row.stops else "length")
        assert (answer["usage"]["completion_tokens"] < ANSWER) is row.stops
        assert answer["logprobs"] == expected.answers[replace(row, stream=False)]["logprobs"]
    texts = {row.prompt: answer["text"] for row, answer in expected.answers.items() if not row.stops}
    assert len(set(texts.values())) == len(PROMPTS)


@pytest.mark.parametrize("preempted", [False, True], ids=["steady", "preempted"])
@pytest.mark.parametrize("budget", [9, 128], ids=["tiny chunks", "large chunks"])
@pytest.mark.parametrize("size", [1, BATCH], ids=["alone", "batch of 7"])
async def test_no_column_changes_an_answer(
    files: ModelFiles, expected: Expected, size: int, budget: int, preempted: bool
) -> None:
    prefill, decode = engines(files, kernels=expected.kernels, budget=budget, preempted=preempted)
    async with cluster(files, prefill, decode) as here:
        for rows in _batches(size):
            for prefix in PREFIXES:
                await _compare(here, rows, prefix, expected)
                if here.unsteady is not None:
                    assert len(here.unsteady.taken) == len(rows), "every answer lost its pages once"
                    here.unsteady.taken.clear()
                await here.quiet()


def _batches(size: int) -> list[list[Row]]:
    """All rows, so many at a time; the last batch repeats some."""
    starts = [min(start, len(ROWS) - size) for start in range(0, len(ROWS), size)]
    return [ROWS[start : start + size] for start in starts]


async def _compare(here: Cluster, rows: list[Row], prefix: str, expected: Expected) -> None:
    """After a miss the whole prompt is known under the same salt; a hit has met another prompt with that beginning."""
    salts = [f"{row} {rows[0]} {'hit' if prefix == 'hit' else ''}" for row in rows]
    if prefix == "hit":
        others = zip(rows, salts, strict=True)
        primers = [_body([*PROMPTS[row.prompt][:35], *LETTERS[:3]], salt, max_tokens=1) for row, salt in others]
        await asyncio.gather(*(here.ask(**primer) for primer in primers))
    asked = zip(rows, salts, strict=True)
    answers = await asyncio.gather(*(here.ask(**row.body(expected.stops, salt)) for row, salt in asked))
    for row, answer in zip(rows, answers, strict=True):
        assert _told(answer) == expected.answers[row]
        cached, most = answer["usage"]["prompt_tokens_details"]["cached_tokens"], len(PROMPTS[row.prompt]) - 1
        assert {"miss": cached == 0, "hit": 32 <= cached < most, "full hit": cached == most}[prefix], (prefix, cached)
