"""A prefill worker of two ranks before a decode worker of one, from HTTP to pages: the answers of one rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_cluster import OPTIONS, Cluster, byte_files, cluster

from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.replica import Replica
from headrace.engine.tensor_parallel.build import build_ranked_engine
from headrace.modelfiles.files import ModelFiles

DEFAULT = replace(OPTIONS, batch_invariant=False)
CLOSE = 2e-4
REQUESTS = [
    {"prompt": list(range(20, 90)), "temperature": 0},
    {"prompt": list(range(30, 63)), "temperature": 0.8, "seed": 3},
    {"prompt": [40, 50, 60], "temperature": 0, "presence_penalty": 0.5, "min_tokens": 4},
]


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return byte_files(tmp_path)


def known(files: ModelFiles) -> Vocabulary:
    return Vocabulary(files.config.vocab_size, frozenset(files.stop_ids))


@contextmanager
def ranked(files: ModelFiles) -> Iterator[Replica]:
    engine, ranks = build_ranked_engine(files, known(files), replace(DEFAULT, tensor_parallel_size=2))
    try:
        yield engine
    finally:
        ranks.stop()


async def answers(here: Cluster) -> list[tuple[list[int], list[float]]]:
    told = [
        await here.ask(**body, max_tokens=12, logprobs=1, return_token_ids=True, ignore_eos=True) for body in REQUESTS
    ]
    await here.quiet()
    return [(answer["token_ids"], answer["logprobs"]["token_logprobs"]) for answer in told]


async def test_answers_through_two_ranks_are_those_of_one(files: ModelFiles) -> None:
    one = [build_engine(files, known(files), DEFAULT) for _ in range(2)]
    async with cluster(files, *one) as here:
        expected = await answers(here)
    with ranked(files) as two:
        async with cluster(files, two, one[1]) as here:
            heard = await answers(here)
    for (ids, logprobs), (expected_ids, expected_logprobs) in zip(heard, expected, strict=True):
        assert ids == expected_ids
        assert logprobs == pytest.approx(expected_logprobs, abs=CLOSE)
