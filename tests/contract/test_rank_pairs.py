"""Prefill by 1, 2 or 4 ranks before decode by 1, 2 or 4, each rank a process: the same answers, whichever pair."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import pytest
from fixtures.gguf_writer import tokens as vocabulary
from fixtures.tiny_model import CONFIG, tiny_files
from matrix_cluster import OPTIONS, Cluster, cluster, write_tokenizer

from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.replica import Replica
from headrace.engine.tensor_parallel.build import build_ranked_engine
from headrace.modelfiles.files import ModelFiles

# Without what was cached for one pair, so that every page of the next travels too.
DEFAULT = replace(OPTIONS, batch_invariant=False, enable_prefix_caching=False, kernels="torch")
DEGREES = (1, 2, 4)
CLOSE = 2e-4
REQUESTS = [
    {"prompt": list(range(20, 90)), "temperature": 0},
    {"prompt": list(range(30, 63)), "temperature": 0.8, "seed": 3},
    {"prompt": [40, 50, 60], "temperature": 0, "presence_penalty": 0.5, "min_tokens": 4},
]
Answers = list[tuple[list[int], list[float]]]
Engines = dict[int, tuple[Replica, Replica]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = tmp_path_factory.mktemp("ranks")
    write_tokenizer(directory)
    return tiny_files(directory, replace(CONFIG, vocab_size=len(vocabulary()), heads=8, kv_heads=4))


@pytest.fixture(scope="module")
def engines(files: ModelFiles) -> Iterator[Engines]:
    """Of each degree one to prefill and one to decode, made once for all pairs: a rank takes seconds to start."""
    known = Vocabulary(files.config.vocab_size, frozenset(files.stop_ids))
    with ExitStack() as closing:

        def make(degree: int) -> Replica:
            options = replace(DEFAULT, tensor_parallel_size=degree)
            if degree == 1:
                return build_engine(files, known, options)
            engine, ranks = build_ranked_engine(files, known, options)
            closing.callback(ranks.stop)
            return engine

        yield {degree: (make(degree), make(degree)) for degree in DEGREES}


async def answers(here: Cluster) -> Answers:
    told = [
        await here.ask(**body, max_tokens=12, logprobs=1, return_token_ids=True, ignore_eos=True) for body in REQUESTS
    ]
    await here.quiet()
    return [(answer["token_ids"], answer["logprobs"]["token_logprobs"]) for answer in told]


async def test_any_number_of_ranks_hands_over_to_any_other(files: ModelFiles, engines: Engines) -> None:
    assert {engine.info.tensor_parallel for pair in engines.values() for engine in pair} == set(DEGREES)
    assert len({engine.info.model_digest for pair in engines.values() for engine in pair}) == 1
    heard: dict[tuple[int, int], Answers] = {}
    for prefill, decode in product(DEGREES, DEGREES):
        async with cluster(files, engines[prefill][0], engines[decode][1]) as here:
            heard[prefill, decode] = await answers(here)
            sent, received = (
                worker.metrics.registry.get_sample_value("headrace_kv_transfer_bytes_total", {"direction": direction})
                for worker, direction in zip(here.workers, ("sent", "received"), strict=True)
            )
            assert sent == received > 0
    expected = heard[1, 1]
    for pair, told in heard.items():
        for (ids, logprobs), (expected_ids, expected_logprobs) in zip(told, expected, strict=True):
            assert ids == expected_ids, pair
            assert logprobs == pytest.approx(expected_logprobs, abs=CLOSE), pair
