"""The replica: the one implementation of Engine, a loop of schedule, run and report over any Runner.

Owns the live sequences and what a step reports. It knows no tensor, no kernel and no text.
"""

from collections import Counter

from headrace.core.blocks import BLOCK_TOKENS, blocks_for
from headrace.core.errors import ContextLengthExceeded, HeadraceError, InternalError, InvalidRequest, Overloaded
from headrace.core.fleet import Load
from headrace.core.jobs import Job, JobKey, JobKind, Outcome
from headrace.core.pages import PagePort
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import Admission, EngineInfo, Finished, Progress, Sampled, StepOutput
from headrace.engine.prefix_cache import PrefixCache
from headrace.engine.runner import Draw, Drawn, Runner, Span
from headrace.engine.schedule import Schedule
from headrace.engine.sequence import Sequence, State, outcome_of

_RETRY_AFTER_S = 0.5


class Replica:
    """See Engine for the contract. token_budget: tokens computed in one step at most."""

    def __init__(
        self, info: EngineInfo, vocabulary: Vocabulary, runner: Runner, *, token_budget: int, prefix_caching: bool
    ) -> None:
        self._info = info
        self._vocabulary = vocabulary
        self._runner = runner
        self._cache = PrefixCache(info.num_blocks, enabled=prefix_caching)
        self._schedule = Schedule(self._cache, token_budget)
        self._live: dict[JobKey, Sequence] = {}  # oldest first

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def pages(self) -> PagePort:
        return self._runner.pages

    def add(self, job: Job) -> Admission:
        self._validate(job)
        if len(self._live) >= self._info.max_jobs:
            raise Overloaded(f"All {self._info.max_jobs} slots are taken.", retry_after_s=_RETRY_AFTER_S)
        sequence = Sequence.of(job)
        if job.kind is JobKind.DECODE:
            self._grant(sequence)
            resident = sequence.computed
        else:
            resident = len(self._cache.match(job.root, sequence.hashes, sequence.tokens)) * BLOCK_TOKENS
        self._live[job.key] = sequence
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
        self._publish(sequence)
        sequence.state = State.RUNNING
        self._append(sequence, first_token)

    def remove(self, key: JobKey, verified_tokens: int = 0) -> None:
        sequence = self._live.get(key)
        if sequence is None:
            return
        if sequence.state is State.GRANTED:
            sequence.computed = max(sequence.computed, min(verified_tokens, len(sequence.tokens)))
            self._publish(sequence)
        self._free(sequence)

    def step(self) -> StepOutput:
        finished = [self._finish(one, one.outcome) for one in list(self._live.values()) if one.outcome is not None]
        shares = self._schedule.plan(self._live.values())
        sampled: list[Sampled] = []
        progress: list[Progress] = []
        if shares:
            drawn = self._runner.run([self._span(sequence, count) for sequence, count in shares.items()])
            for (sequence, count), result in zip(shares.items(), drawn, strict=True):
                if isinstance(result, HeadraceError):
                    finished.append(self._fail(sequence, result))
                    continue
                self._computed(sequence, count, progress)
                if result.token is not None:
                    self._drawn(sequence, result.token, result, sampled, finished)
        stored, evicted = self._cache.drain()
        return StepOutput(
            tuple(sampled), tuple(progress), tuple(finished), stored, evicted, self._load(), idle=not shares
        )

    def check(self) -> None:
        self._cache.check(Counter(block for sequence in self._live.values() for block in sequence.blocks))

    def _validate(self, job: Job) -> None:
        sampling = job.sampling
        if job.key in self._live:
            raise InvalidRequest(f"Job {job.key} is here already.")
        if not 1 <= job.prompt_len <= len(job.tokens):
            raise InvalidRequest("A job needs one prompt token or more.")
        if min(job.tokens) < 0 or max(job.tokens) >= self._vocabulary.size:
            raise InvalidRequest(f"A token id is outside the vocabulary of {self._vocabulary.size}.")
        if sampling.max_tokens is not None and job.generated >= sampling.max_tokens:
            raise InvalidRequest(f"All {sampling.max_tokens} tokens of max_tokens are generated already.")
        if len(job.tokens) >= self._info.max_model_len:
            raise ContextLengthExceeded(
                f"{len(job.tokens)} tokens leave no room for an answer in a context of {self._info.max_model_len}.",
                remedy="Shorten the prompt.",
            )

    def _grant(self, sequence: Sequence) -> None:
        """Reserve a decode job's pages while one block stays free for its growth."""
        spare = min(1, self._info.num_blocks - blocks_for(len(sequence.tokens)))
        if self._schedule.starved or not self._schedule.reserve(sequence, headroom=spare):
            raise Overloaded("There are no free KV pages for this job now.", retry_after_s=_RETRY_AFTER_S)
        sequence.state = State.GRANTED

    def _span(self, sequence: Sequence, count: int) -> Span:
        draw = None
        if count == sequence.pending:
            draw = Draw(sequence.job.sampling, sequence.job.choice, sequence.history)
        return Span(sequence.tokens, sequence.computed, count, sequence.blocks, draw)

    def _computed(self, sequence: Sequence, count: int, progress: list[Progress]) -> None:
        sequence.computed += count
        self._publish(sequence)
        if sequence.job.kind is JobKind.PREFILL:
            blocks = tuple(sequence.blocks[: blocks_for(sequence.computed)])
            progress.append(Progress(sequence.job.key, sequence.computed, blocks))

    def _drawn(
        self, sequence: Sequence, token: int, drawn: Drawn, sampled: list[Sampled], finished: list[Finished]
    ) -> None:
        key = sequence.job.key
        sampled.append(Sampled(key, sequence.position, token, sequence.take_cached_tokens(), drawn.logprob))
        self._append(sequence, token)
        outcome = sequence.outcome
        if sequence.job.kind is JobKind.PREFILL:
            sequence.state, sequence.outcome = State.HELD, None
            if outcome is not None:
                finished.append(Finished(key, outcome))
        elif outcome is not None:
            finished.append(self._finish(sequence, outcome))

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        sequence.outcome = outcome_of(
            sequence.job, self._vocabulary, token, len(sequence.tokens), self._info.max_model_len
        )
        if sequence.outcome is not None:
            sequence.state = State.ENDED

    def _finish(self, sequence: Sequence, outcome: Outcome) -> Finished:
        self._free(sequence)
        return Finished(sequence.job.key, outcome)

    def _fail(self, sequence: Sequence, error: HeadraceError) -> Finished:
        """A prefill job keeps its pages until `remove`: a transfer may be reading them."""
        sequence.failed = True
        self._cache.forget(sequence.blocks)
        if sequence.job.kind is JobKind.PREFILL:
            sequence.state = State.HELD
        else:
            self._free(sequence)
        return Finished(sequence.job.key, Outcome.FAILED, error)

    def _publish(self, sequence: Sequence) -> None:
        self._cache.publish(sequence.job.root, sequence.full_hashes(), sequence.tokens, sequence.blocks, sequence.path)

    def _free(self, sequence: Sequence) -> None:
        if sequence.failed:
            own = [block for block in sequence.blocks if self._cache.pool.references(block) == 1]
            self._runner.pages.clear(own)
        self._cache.release(sequence.blocks)
        del self._live[sequence.job.key]

    def _load(self) -> Load:
        waiting = sum(sequence.state is State.WAITING for sequence in self._live.values())
        return Load(
            running=len(self._live) - waiting,
            waiting=waiting,
            free_blocks=self._cache.pool.free,
            total_blocks=self._info.num_blocks,
            cached_blocks=len(self._cache),
            credits=self._info.max_jobs - len(self._live),
        )
