"""What the fake engine adds to the contract: answers that stop when told, steps that can be watched."""

from pathlib import Path

from fixtures.engine_driver import generate, make_job, prompt
from fixtures.tiny_model import STOP_ID, VOCABULARY, tiny_files

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
