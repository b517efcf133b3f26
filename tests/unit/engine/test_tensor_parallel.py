"""Replicas of several ranks, as real processes: the same answers as one rank, pages of any of them, and their ends."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from fixtures.engine_driver import Trace, generate, hand_over, make_job, prompt
from fixtures.living import alive, left_after
from fixtures.measured import TORCH_KEEPS_ITS_BITS
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files

from headrace.core.errors import StartupError, WorkerLost
from headrace.core.jobs import Job
from headrace.engine.build import build_engine, plan
from headrace.engine.options import EngineOptions
from headrace.engine.replica import Replica
from headrace.engine.runner import Span
from headrace.engine.tensor_parallel import group
from headrace.engine.tensor_parallel.build import build_ranked_engine
from headrace.engine.tensor_parallel.commands import pack_step, unpack_step
from headrace.engine.tensor_parallel.ranks import Ranks, start_ranks
from headrace.modelfiles.files import ModelFiles

WIDE = replace(CONFIG, heads=16, kv_heads=8, head_dim=8)
OPTIONS = EngineOptions(
    dtype="float32",
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=48,
    kv_cache_memory_bytes=2**21,
    enable_prefix_caching=False,
    threads=1,
)
CLOSE = 2e-4
PROMPTS = [prompt(5, 70), prompt(9, 3), prompt(2, 33)]
# What a rank's death may take until its worker knows.
PROMPTLY_S = 5.0


@dataclass
class Ranked:
    engine: Replica
    ranks: Ranks
    batch_invariant: bool

    @property
    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.ranks.pids]


@contextmanager
def _ranked(files: ModelFiles, options: EngineOptions) -> Iterator[Ranked]:
    engine, ranks = build_ranked_engine(files, VOCABULARY, options)
    try:
        yield Ranked(engine, ranks, options.batch_invariant)
    finally:
        ranks.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_files(tmp_path_factory.mktemp("wide"), WIDE)


@pytest.fixture(scope="module")
def one(files: ModelFiles) -> Replica:
    return build_engine(files, VOCABULARY, OPTIONS)


@pytest.fixture(
    scope="module",
    params=[(2, False), pytest.param((4, True), marks=TORCH_KEEPS_ITS_BITS)],
    ids=["2", "4, batch-invariant"],
)
def several(request: pytest.FixtureRequest, files: ModelFiles) -> Iterator[Ranked]:
    size, batch_invariant = request.param
    options = replace(OPTIONS, tensor_parallel_size=size, batch_invariant=batch_invariant)
    with _ranked(files, options) as ranked:
        yield ranked


def _jobs(name: str = "") -> list[Job]:
    return [make_job(f"{name}{index}", tokens, logprobs=4, prompt_logprobs=0) for index, tokens in enumerate(PROMPTS)]


def _run(engine: Replica, *jobs: Job) -> Trace:
    for job in jobs:
        engine.add(job)
    return Trace().run(engine)


def test_ranks_agree_with_one(one: Replica, several: Ranked) -> None:
    """Tokens are equal and the chances of all prompt and answer tokens close: the tiny model has no near-ties here."""
    jobs = _jobs()
    alone, together = _run(one, *jobs), _run(several.engine, *jobs)
    for job in jobs:
        assert together.tokens(job) == alone.tokens(job)
        for ours, theirs in zip(together.sampled(job), alone.sampled(job), strict=True):
            assert ours.logprob is not None
            assert theirs.logprob is not None
            assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=CLOSE)
            prompts = zip(ours.prompt_logprobs, theirs.prompt_logprobs, strict=True)
            assert all(mine.logprob == pytest.approx(yours.logprob, abs=CLOSE) for mine, yours in prompts)


def test_pages_go_from_any_number_of_ranks_to_any(one: Replica, several: Ranked) -> None:
    expected = generate(one, make_job("here", PROMPTS[0]))[0]
    assert hand_over(one, several.engine, "out", PROMPTS[0]) == expected
    assert hand_over(several.engine, one, "back", PROMPTS[0]) == expected


def test_workers_share_pages_across_ranks_unless_bits_matter(one: Replica, several: Ranked) -> None:
    same = several.engine.info.model_digest == one.info.model_digest
    assert same is not several.batch_invariant
    assert several.engine.info.layout == one.info.layout


def test_company_changes_no_token_and_in_batch_invariant_mode_no_bit(several: Ranked) -> None:
    jobs = _jobs("together")
    together = _run(several.engine, *jobs)
    for job, alone in zip(jobs, _jobs("alone"), strict=True):
        by_itself = _run(several.engine, alone)
        assert by_itself.tokens(alone) == together.tokens(job)
        if several.batch_invariant:
            assert [(one.logprob, one.prompt_logprobs) for one in by_itself.sampled(alone)] == [
                (one.logprob, one.prompt_logprobs) for one in together.sampled(job)
            ]


def test_a_rank_that_dies_in_an_exchange_ends_it(several: Ranked) -> None:
    """The last test of these ranks. The one that died is named, not those that it left alone; all of them end."""
    processes, size = several.processes, several.ranks.size
    dying = size // 2
    with ThreadPoolExecutor(1) as thread:
        processes[dying - 1].suspend()  # so that no step comes to an end
        several.engine.add(make_job("last", PROMPTS[0]))
        step = thread.submit(several.engine.step)
        processes[dying - 1].kill()
        with pytest.raises(WorkerLost, match=f"Rank {dying} of {size} was killed by SIGKILL"):
            step.result(PROMPTLY_S)
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):  # as an idle worker hears of it
        asyncio.run(asyncio.wait_for(several.ranks.watch(), PROMPTLY_S))
    assert not left_after(processes, PROMPTLY_S)


def test_a_rank_that_is_silent_for_too_long_ends_the_replica(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen, as with its machine's memory: the group's limit ends the wait, and stopping ends the rank."""
    monkeypatch.setattr(group, "LIMIT", timedelta(seconds=2))
    with _ranked(files, replace(OPTIONS, tensor_parallel_size=2)) as ranked:
        (process,) = ranked.processes
        process.suspend()
        ranked.engine.add(make_job("last", PROMPTS[0]))
        with pytest.raises(WorkerLost, match="has not answered"):
            ranked.engine.step()
        ranked.ranks.stop()
        assert not alive([process])


def test_a_rank_that_cannot_load_says_why(files: ModelFiles, tmp_path: Path) -> None:
    options = replace(OPTIONS, tensor_parallel_size=2)
    lacking = replace(files, tensors=tuple(each for each in files.tensors if "down_proj" not in each.name))
    ranks = start_ranks(lacking, options, plan(files, options))
    try:
        with pytest.raises(StartupError, match=r"Rank 1 of 2 cannot start: Tensor .*down_proj"):
            ranks.meet()
    finally:
        ranks.stop()


def test_a_rank_that_dies_while_it_loads(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises((StartupError, WorkerLost), match="Rank 1 of 2 ended with exit code 1"):
        build_ranked_engine(files, VOCABULARY, replace(OPTIONS, tensor_parallel_size=2))


def test_heads_that_ranks_cannot_share_are_refused(files: ModelFiles) -> None:
    config = replace(CONFIG, heads=6, kv_heads=2)
    with pytest.raises(StartupError, match="2 key-value heads cannot be split over 4"):
        build_ranked_engine(replace(files, config=config), VOCABULARY, replace(OPTIONS, tensor_parallel_size=4))
    with pytest.raises(StartupError, match="tensor_parallel_size 3"):
        replace(OPTIONS, tensor_parallel_size=3)


_PARENT = """
import sys
from pathlib import Path
from test_tensor_parallel import OPTIONS, VOCABULARY, WIDE, build_ranked_engine, replace, tiny_files
files = tiny_files(Path(sys.argv[1]), WIDE)
engine, ranks = build_ranked_engine(files, VOCABULARY, replace(OPTIONS, tensor_parallel_size=2))
print("ready", flush=True)
sys.stdin.read()
"""


def test_ranks_do_not_outlive_rank_0(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PARENT, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert any(line == b"ready\n" for line in parent.stdout)
        children = psutil.Process(parent.pid).children()
        parent.kill()
    assert len(children) == 1
    assert not left_after(children, PROMPTLY_S)


def test_steps_survive_the_wire() -> None:
    tokens = list(range(100, 140))
    spans = [Span(tokens, 5, 1, [4, 9], None), Span(tokens, 16, 20, [7, 3, 1], None)]
    unpacked = unpack_step(pack_step(spans, 16))
    assert [(one.start, one.count) for one in unpacked] == [(5, 1), (16, 20)]
    assert [one.tokens[one.start : one.start + one.count] for one in unpacked] == [tokens[5:6], tokens[16:36]]
    assert [one.blocks for one in unpacked] == [[4], [7, 3, 1]]
