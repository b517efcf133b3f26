"""What the fake engine adds to the contract: answers that stop when told, steps that can be watched."""

import math
from pathlib import Path

import pytest
from fixtures.engine_driver import Trace, generate, make_job, prompt
from fixtures.tiny_model import STOP_ID, VOCABULARY, tiny_files

from headrace.engine.engine import Sampled
from headrace.engine.fake import build_fake_engine
from headrace.engine.options import EngineOptions

OPTIONS = EngineOptions(kv_cache_memory_bytes=2**20)


def test_never_stops_by_itself(tmp_path: Path) -> None:
    (tokens,) = generate(
        build_fake_engine(tiny_files(tmp_path), VOCABULARY, OPTIONS), make_job("a", prompt(1, 9), max_tokens=490)
    )
    assert len(tokens) == 490
    assert STOP_ID not in tokens
    assert len(set(tokens)) > 100


def test_stops_when_told(tmp_path: Path) -> None:
    engine = build_fake_engine(tiny_files(tmp_path), VOCABULARY, OPTIONS, stop_after=5)
    (tokens,) = generate(engine, make_job("a", prompt(1, 9)))
    assert tokens[4:] == [STOP_ID]


def test_each_batch_can_be_watched(tmp_path: Path) -> None:
    steps: list[int] = []
    engine = build_fake_engine(tiny_files(tmp_path), VOCABULARY, OPTIONS, before_step=lambda: steps.append(1))
    generate(engine, make_job("a", prompt(1, 9), max_tokens=7))
    assert len(steps) == 7


def _told(directory: Path, **sampling: object) -> list[Sampled]:
    engine, trace = build_fake_engine(tiny_files(directory), VOCABULARY, OPTIONS), Trace()
    job = make_job("a", prompt(1, 30), **sampling)  # type: ignore[arg-type]
    engine.add(job)
    return trace.run(engine).sampled(job)


def test_logprobs_are_those_of_its_law(tmp_path: Path) -> None:
    size = VOCABULARY.size
    for one in _told(tmp_path, temperature=1.0, logprobs=20):
        assert one.logprob is not None
        assert one.logprob.token == one.token
        rank = one.logprob.rank
        assert math.exp(one.logprob.logprob) == pytest.approx((size + 1) / size / (rank * (rank + 1)))
        values = [value for _, value in one.logprob.top]
        assert values == sorted(values, reverse=True)
        assert len({token for token, _ in one.logprob.top}) == 20
        assert rank > 20 or one.logprob.top[rank - 1] == (one.token, one.logprob.logprob)
    every = [1 / (rank * (rank + 1)) * (size + 1) / size for rank in range(1, size + 1)]
    assert sum(every) == pytest.approx(1.0)


def test_greedy_takes_the_likeliest_that_is_no_stop_id(tmp_path: Path) -> None:
    for one in _told(tmp_path, logprobs=2, max_tokens=200):
        assert one.logprob is not None
        likeliest = next(token for token, _ in one.logprob.top if token not in VOCABULARY.stop_ids)
        assert one.token == likeliest


def test_an_answer_scored_as_a_prompt_gets_the_logprobs_it_had(tmp_path: Path) -> None:
    told = _told(tmp_path, temperature=1.0, logprobs=3)
    again = make_job("b", prompt(1, 30) + tuple(one.token for one in told), prompt_logprobs=3, max_tokens=1)
    engine, trace = build_fake_engine(tiny_files(tmp_path), VOCABULARY, OPTIONS), Trace()
    engine.add(again)
    (first,) = trace.run(engine).sampled(again)
    assert list(first.prompt_logprobs[29:]) == [one.logprob for one in told]


def test_no_stop_comes_early(tmp_path: Path) -> None:
    engine = build_fake_engine(tiny_files(tmp_path), VOCABULARY, OPTIONS, stop_after=5)
    (tokens,) = generate(engine, make_job("a", prompt(1, 9), min_tokens=5))
    assert STOP_ID not in tokens
