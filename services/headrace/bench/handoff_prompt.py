"""Reads prompts with a worker's engine and hands their pages over, streamed or when the last is computed.

Owns the engine and the clock of one prompt. It knows no links.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.handoff_end import LIMIT_S, HandoffEnd
from headrace.core.blocks import chain, root_hash
from headrace.core.errors import InternalError
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.pages import PagePort
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import Ticket
from headrace.engine.build import build_engine
from headrace.engine.engine import Progress
from headrace.engine.options import EngineOptions
from headrace.modelfiles.resolve import resolve

_ROOT = root_hash(b"bench")
_STRIDE = 7919


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Of one prompt, on the machine's monotonic clock: when its first chunk began and its last one was computed."""

    began: float
    computed: float


class PromptReader:
    """Raises StartupError for a model that is not there or does not fit."""

    def __init__(self, model: str, cache_dir: Path, options: EngineOptions) -> None:
        files = resolve(model, cache_dir)
        self.name = files.name
        self._vocabulary = files.vocabulary.size
        self._engine = build_engine(files, files.vocabulary, options)
        self._jobs = 0

    @property
    def pages(self) -> PagePort:
        return self._engine.pages

    def hand_over(self, end: HandoffEnd, ticket: Ticket, tokens: int, *, streamed: bool) -> Prefilled:
        """Compute `tokens` tokens of no other prompt, and send their pages with `ticket`. Raises HeadraceError."""
        job = self._job(tokens)
        began = time.monotonic()
        self._engine.add(job)
        try:
            end.thread.send(ticket, LIMIT_S)
            while True:
                progress = self._step(job)
                whole = progress.computed_tokens >= tokens
                computed = time.monotonic()
                if whole or streamed:
                    end.thread.advance(ticket.transfer, self._ready(progress, whole=whole))
                if whole:
                    end.completed()
                    return Prefilled(began, computed)
        finally:
            self._engine.remove(job.key)

    def _step(self, job: Job) -> Progress:
        """The next step in which the prompt gets on."""
        while True:
            output = self._engine.step()
            for finished in output.finished:
                if finished.error is not None:
                    raise finished.error
            for progress in output.progress:
                if progress.key == job.key:
                    return progress
            if output.idle:
                raise InternalError("The engine has nothing to do in the midst of a prompt.")

    def _ready(self, progress: Progress, *, whole: bool) -> tuple[int, ...]:
        """The blocks that are full, or all of them at the prompt's end."""
        block_tokens = self._engine.pages.layout.block_tokens
        return progress.blocks if whole else progress.blocks[: progress.computed_tokens // block_tokens]

    def _job(self, length: int) -> Job:
        self._jobs += 1
        tokens = tuple((self._jobs * _STRIDE + 131 * index) % self._vocabulary for index in range(length))
        sampling = SamplingParams(temperature=0.0, seed=1, max_tokens=2, ignore_eos=True)
        key = JobKey(f"bench-{self._jobs}", 1)
        return Job(key, JobKind.PREFILL, tokens, length, sampling, _ROOT, chain(_ROOT, tokens), timeout_s=600.0)
