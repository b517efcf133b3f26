"""The replica: the one implementation of Engine, a loop of schedule, run and report over any Runner.

Owns the live sequences and what a step reports. It knows no tensor, no kernel and no text.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.core.errors import HeadraceError, InternalError, InvalidRequest, Overloaded
from headrace.core.fleet import Load
from headrace.core.jobs import Job, JobKey, JobKind, Outcome
from headrace.core.pages import PagePort
from headrace.core.vocabulary import Vocabulary
from headrace.engine.allocator import Allocator
from headrace.engine.engine import Admission, EngineInfo, Finished, KvUse, Progress, Sampled, StepOutput
from headrace.engine.pace import Pacer
from headrace.engine.possible import require_possible
from headrace.engine.prefix_cache import PrefixCache
from headrace.engine.runner import Draw, Drawn, Runner, Span
from headrace.engine.schedule import Schedule, Shares
from headrace.engine.sequence import Sequence, State, outcome_of

_RETRY_AFTER_S = 0.5


@dataclass(slots=True)
class _News:
    """What a step brought so far."""

    sampled: list[Sampled] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class Replica:
    """See Engine for the contract. token_budget: tokens computed in one step at most. max_step_s: seconds that a step
    with prompts should stay below, measured by `clock`; 0 for no such limit."""

    def __init__(
        self,
        info: EngineInfo,
        vocabulary: Vocabulary,
        runner: Runner,
        *,
        token_budget: int,
        prefix_caching: bool,
        max_step_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._info = info
        self._vocabulary = vocabulary
        self._runner = runner
        cache = PrefixCache(info.num_blocks, page_tokens=info.layout.block_tokens, enabled=prefix_caching)
        self._allocator = Allocator(cache)
        self._schedule = Schedule(self._allocator, token_budget)
        self._pacer = Pacer(max_step_s, clock)
        self._live: dict[JobKey, Sequence] = {}  # oldest first
        self._taken = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def pages(self) -> PagePort:
        return self._runner.pages

    def add(self, job: Job) -> Admission:
        if job.key in self._live:
            raise InvalidRequest(f"Job {job.key} is here already.")
        require_possible(job, self._info, self._vocabulary.size, self._allocator.pages_for)
        sequence = Sequence.of(job, age=self._taken)
        if self._count(exports=sequence.exports) >= self._info.max_jobs:
            raise Overloaded(f"All {self._info.max_jobs} slots are taken.", retry_after_s=_RETRY_AFTER_S)
        if job.kind is JobKind.DECODE:
            self._grant(sequence)
            resident = sequence.computed
        elif sequence.exports:
            self._export(sequence)
            resident = sequence.computed
        else:
            resident = len(self._allocator.find(sequence).pages) * self._info.layout.block_tokens
        self._live[job.key] = sequence
        self._taken += 1
        return Admission(resident, tuple(sequence.blocks))

    def activate(self, key: JobKey, first_token: int) -> None:
        sequence = self._live.get(key)
        if sequence is None:
            return
        if sequence.state is not State.GRANTED:
            raise InternalError(f"Job {key} cannot be activated: it is {sequence.state.value}.")
        if not 0 <= first_token < self._vocabulary.size:
            raise InvalidRequest(f"The first token of job {key} is not in the vocabulary.")
        sequence.computed = len(sequence.tokens)
        self._allocator.publish(sequence, tail=True)
        sequence.state = State.RUNNING
        self._append(sequence, first_token)

    def hold(self, key: JobKey) -> Progress | None:
        sequence = self._live.get(key)
        if sequence is None or sequence.state is State.ENDED:
            return None
        if sequence.sends or sequence.exports or sequence.state is State.GRANTED:
            raise InvalidRequest(f"Job {key} cannot be held: it writes no answer.")
        sequence.state = State.HELD
        return self._progress(sequence)

    def remove(self, key: JobKey, verified_tokens: int = 0) -> None:
        sequence = self._live.get(key)
        if sequence is None:
            return
        if sequence.state is State.GRANTED:
            sequence.computed = max(sequence.computed, min(verified_tokens, len(sequence.tokens)))
        self._free(sequence)

    def step(self) -> StepOutput:
        news = _News()
        self._pacer.begin()
        for sequence in [one for one in self._live.values() if one.outcome is not None]:
            self._finish(sequence, news)
        shares = self._schedule.plan(self._live.values(), self._pacer.prompt_tokens)
        if copies := self._allocator.take_copies():
            self._runner.pages.copy(copies)
        news.progress += [self._progress(sequence) for sequence in self._schedule.found]
        if shares:
            self._run(shares, news)
            self._pacer.ran(shares.values())
        stored, evicted = self._allocator.drain()
        idle = not shares and not self._schedule.found
        return StepOutput(
            tuple(news.sampled),
            tuple(news.progress),
            tuple(news.finished),
            stored,
            evicted,
            self._load(),
            idle=idle,
            stuck=self._stuck() if idle else 0,
            preempted=self._schedule.preempted,
            displaced=tuple(key for key, sequence in self._live.items() if sequence.displaced),
            prompt_tokens=sum(count for count in shares.values() if count > 1),
            kv=self._kv_use(),
        )

    def check(self) -> None:
        self._allocator.check(self._live.values())

    def _grant(self, sequence: Sequence) -> None:
        """Reserve a decode job's pages while one stays free for its growth, after all who wait for pages."""
        spare = min(1, self._info.num_blocks - self._allocator.pages_for(len(sequence.tokens)))
        hit = self._allocator.find(sequence)
        if self._schedule.short or not self._allocator.admit(sequence, hit, headroom=spare):
            raise Overloaded("There are no free KV pages for this job now.", retry_after_s=_RETRY_AFTER_S)
        sequence.state = State.GRANTED

    def _export(self, sequence: Sequence) -> None:
        """Give it pages that are here: those of one that holds them all, else the whole ones that are cached."""
        source = next((one for one in self._live.values() if one.has_all_of(sequence)), None)
        if source is not None:
            self._allocator.share(sequence, source)
        elif self._schedule.short or not self._allocator.pin(sequence):
            raise Overloaded("There are no KV pages to spare for an export now.", retry_after_s=_RETRY_AFTER_S)
        sequence.state = State.HELD

    def _run(self, shares: Shares, news: _News) -> None:
        drawn = self._runner.run([self._span(sequence, count) for sequence, count in shares.items()])
        for (sequence, count), result in zip(shares.items(), drawn, strict=True):
            self._came(sequence, count, result, news)

    def _span(self, sequence: Sequence, count: int) -> Span:
        sampling = sequence.job.sampling
        draw = None
        if count == sequence.pending:
            draw = Draw(sampling, sequence.job.choice, sequence.history)
        score = sampling.prompt_logprobs if sequence.scoring else None
        return Span(sequence.tokens, sequence.computed, count, sequence.blocks, draw, score)

    def _came(self, sequence: Sequence, count: int, result: Drawn | HeadraceError, news: _News) -> None:
        """What the runner made of a sequence's share."""
        if isinstance(result, HeadraceError):
            self._fail(sequence, result, news)
            return
        if sequence.scoring:
            sequence.scores += result.scored
        sequence.computed += count
        self._allocator.publish(sequence, tail=count > 1)
        if sequence.sends:
            news.progress.append(self._progress(sequence))
        if result.token is not None:
            self._drawn(sequence, result.token, result, news)

    def _progress(self, sequence: Sequence) -> Progress:
        blocks = sequence.blocks[: self._allocator.pages_for(sequence.computed)]
        return Progress(sequence.job.key, sequence.computed, tuple(blocks))

    def _drawn(self, sequence: Sequence, token: int, drawn: Drawn, news: _News) -> None:
        key = sequence.job.key
        news.sampled.append(
            Sampled(key, sequence.position, token, sequence.take_cached_tokens(), drawn.logprob, sequence.take_scores())
        )
        self._append(sequence, token)
        if sequence.sends:
            outcome, sequence.outcome = sequence.outcome, None
            sequence.state = State.HELD
            if outcome is not None:
                news.finished.append(Finished(key, outcome))
        elif sequence.outcome is not None:
            self._finish(sequence, news)

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        sequence.outcome = outcome_of(
            sequence.job, self._vocabulary, token, len(sequence.tokens), self._info.max_model_len
        )
        if sequence.outcome is not None:
            sequence.state = State.ENDED

    def _finish(self, sequence: Sequence, news: _News) -> None:
        assert sequence.outcome is not None
        self._free(sequence)
        news.finished.append(Finished(sequence.job.key, sequence.outcome))

    def _fail(self, sequence: Sequence, error: HeadraceError, news: _News) -> None:
        """A prefill job keeps its pages until `remove`: a transfer may be reading them.

        Exports compute nothing by which they would fail. They are told, so that nobody finds the pages through them.
        """
        for other in (one for one in self._live.values() if one.exports):
            other.failed |= not set(other.blocks).isdisjoint(sequence.blocks)
        sequence.failed = True
        self._allocator.forget(sequence)
        if sequence.sends:
            sequence.state = State.HELD
        else:
            self._free(sequence)
        news.finished.append(Finished(sequence.job.key, Outcome.FAILED, error))

    def _free(self, sequence: Sequence) -> None:
        if spoiled := self._allocator.release(sequence):
            self._runner.pages.clear(spoiled)
        del self._live[sequence.job.key]

    def _stuck(self) -> int:
        """Jobs that would compute if they had pages: those that never began, and streams that stand still."""
        return sum(sequence.state in (State.WAITING, State.RUNNING) for sequence in self._live.values())

    def _count(self, *, exports: bool) -> int:
        """Jobs that are exports or those that are not. The latter take the slots; exports have as many of their own."""
        return sum(sequence.exports is exports for sequence in self._live.values())

    def _load(self) -> Load:
        waiting = sum(sequence.state is State.WAITING for sequence in self._live.values())
        jobs = self._count(exports=False)
        return Load(
            running=jobs - waiting,
            waiting=waiting,
            free_blocks=self._allocator.pool.free,
            total_blocks=self._info.num_blocks,
            cached_blocks=self._allocator.cached_blocks,
            credits=self._info.max_jobs - jobs,
        )

    def _kv_use(self) -> KvUse:
        held = (self._info.num_blocks - self._allocator.pool.free) * self._info.layout.block_tokens
        return KvUse(held, held - self._allocator.wasted_slots(self._live.values()))
