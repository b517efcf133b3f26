"""Drives an engine through steps of a given kind and times them.

Owns jobs and clocks. It knows no costs: what the steps computed is told by the runner that ran them.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from headrace.bench.arithmetic import StepWork
from headrace.bench.watched_runner import WatchedRunner
from headrace.core.blocks import chain, root_hash
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.weights.load import DTYPES

_ROOT = root_hash(b"bench")
_FIRST_ID, _STRIDE = 3, 7919
_WARM = 64


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. prompts: of each length, after a short one. steps: of decode, after `warm` ones;
    detailed: further ones, in which operations are timed one by one. enough_s: what was measured for this long is not
    repeated again."""

    prompts: int = 3
    warm: int = 2
    steps: int = 12
    detailed: int = 4
    enough_s: float = 4.0

    @property
    def decoded(self) -> int:
        """Tokens that a stream writes in all."""
        return self.warm + self.steps + self.detailed


@dataclass(frozen=True, slots=True)
class Timed:
    """steps: what they computed. seconds: of each, the median of the repeats. spent: seconds of a step by what they
    went to, on average, from other steps of the kind; `detailed_s`: what such a step took in all."""

    steps: tuple[StepWork, ...]
    seconds: tuple[float, ...]
    spent: Mapping[str, float]
    detailed_s: float


class Driver:
    """runner: the one that runs the engine's steps. vocabulary: how many token ids there are."""

    def __init__(self, engine: Engine, runner: WatchedRunner, vocabulary: int, effort: Effort) -> None:
        self._engine, self._runner, self._vocabulary, self._effort = engine, runner, vocabulary, effort
        self._jobs = 0

    def prefill(self, length: int) -> Timed:
        """A prompt of `length` tokens, alone, in pieces as large as a step allows."""
        self._prompt(min(length, _WARM))
        self._runner.take_steps()
        repeats: list[list[float]] = []
        steps: list[StepWork] = []
        while len(repeats) < self._effort.prompts and sum(map(sum, repeats)) < self._effort.enough_s:
            repeats.append(self._prompt(length))
            steps = self._runner.take_steps()
        with self._runner.clocks() as spent:
            detailed = self._prompt(length)
        return _timed(steps, [statistics.median(each) for each in zip(*repeats, strict=True)], spent, detailed)

    def decode(self, streams: int, context: int) -> Timed:
        """Steps of `streams` answers at once, each behind `context` tokens that another worker is said to have read."""
        jobs = [self._stream(context) for _ in range(streams)]
        try:
            self._steps(self._effort.warm)
            self._runner.take_steps()
            seconds = self._steps(self._effort.steps)
            steps = self._runner.take_steps()
            with self._runner.clocks() as spent:
                detailed = self._steps(self._effort.detailed)
        finally:
            for job in jobs:
                self._engine.remove(job.key)
        middle = statistics.median(seconds)
        return _timed(steps, [middle] * len(steps), spent, detailed)

    def _prompt(self, length: int) -> list[float]:
        job = self._job(JobKind.LOCAL, length, 1)
        self._engine.add(job)
        seconds = []
        while True:
            began = time.perf_counter()
            output = self._engine.step()
            seconds.append(time.perf_counter() - began)
            if any(one.key == job.key for one in output.finished):
                return seconds

    def _stream(self, context: int) -> Job:
        job = self._job(JobKind.DECODE, context, self._effort.decoded + 2)
        blocks = self._engine.add(job).blocks
        pages = self._noise()
        for block in blocks:
            self._engine.pages.write((block,), pages)
        self._engine.activate(job.key, _FIRST_ID)
        return job

    def _steps(self, count: int) -> list[float]:
        seconds: list[float] = []
        while len(seconds) < count and sum(seconds) < self._effort.enough_s:
            seconds.append(_clocked(self._engine.step))
        return seconds

    def _job(self, kind: JobKind, length: int, answer: int) -> Job:
        self._jobs += 1
        tokens = self._tokens(length)
        sampling = SamplingParams(temperature=0.0, seed=1, max_tokens=answer, ignore_eos=True)
        key = JobKey(f"bench-{self._jobs}", 1)
        return Job(key, kind, tokens, length, sampling, _ROOT, chain(_ROOT, tokens), timeout_s=600.0)

    def _tokens(self, length: int) -> tuple[int, ...]:
        """Of no other job."""
        return tuple((self._jobs * _STRIDE + 131 * index) % self._vocabulary for index in range(length))

    def _noise(self) -> memoryview:
        """Keys and values of one block: zeros that nobody wrote would not come out of memory."""
        layout = self._engine.pages.layout
        dtype = DTYPES[layout.dtype]
        noise = torch.randn(layout.block_bytes // dtype.itemsize, generator=torch.Generator().manual_seed(3))
        return memoryview(noise.to(dtype).view(torch.uint8).numpy().data)


def _timed(
    steps: Sequence[StepWork], seconds: Sequence[float], spent: Mapping[str, float], detailed: Sequence[float]
) -> Timed:
    count = len(detailed)
    shares = {name: whole / count for name, whole in spent.items()}
    return Timed(tuple(steps), tuple(seconds), shares, sum(detailed) / count)


def _clocked(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
