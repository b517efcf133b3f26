"""Two thousand random loads on tiny pools: whatever comes, every invariant of the scheduler and its pages holds."""

import functools
import math
from dataclasses import dataclass, field, replace

import pytest
from fixtures.audited_replica import audited
from fixtures.engine_driver import ROOT, make_job, prompt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.blocks import root_hash
from headrace.core.errors import ContextLengthExceeded, Overloaded
from headrace.core.jobs import Job, JobKey, JobKind, Outcome
from headrace.core.logprobs import TokenLogprob
from headrace.engine.engine import Sampled
from headrace.engine.schedule import PATIENCE

LONGEST_ANSWER = 24
LONGEST_PROMPT = 70
# Prompts that begin alike and part at and around page ends.
STEMS = tuple(prompt(1, cut) + prompt(2 + cut, LONGEST_PROMPT) for cut in (70, 48, 32, 31, 17, 5))


@dataclass(frozen=True)
class Plan:
    """One job of a load. arrives: the step before which it is handed in. lingers: steps that a transfer takes.

    leaves: the step before which its router gives it up; none does. holds: the step before which it is stopped, if it
    writes an answer then, for its pages to be exported.
    """

    stem: int
    length: int
    answer: int
    kind: JobKind
    priority: int
    sampled: bool
    scored: bool
    arrives: int
    lingers: int
    leaves: int | None
    holds: int | None = None


@dataclass(frozen=True)
class Load:
    plans: list[Plan]
    spare_blocks: int
    token_budget: int
    max_jobs: int
    page: int
    caching: bool


plans = st.builds(
    Plan,
    stem=st.integers(0, len(STEMS) - 1),
    length=st.sampled_from((1, 2, 15, 16, 17, 31, 32, 33, 40, 48, 49, LONGEST_PROMPT)),
    answer=st.sampled_from((1, 2, 3, 7, 16, LONGEST_ANSWER)),
    kind=st.sampled_from([JobKind.LOCAL] * 4 + [JobKind.PREFILL, JobKind.DECODE]),
    priority=st.sampled_from([0, 0, 0, 1, 2]),
    sampled=st.booleans(),
    scored=st.sampled_from([False, False, False, True]),
    arrives=st.integers(0, 30),
    lingers=st.integers(0, 6),
    leaves=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 60)),
    holds=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 40)),
)


def loads(page: int, caching: bool) -> st.SearchStrategy[Load]:
    return st.builds(
        Load,
        plans=st.lists(plans, min_size=1, max_size=7),
        spare_blocks=st.integers(0, 6),
        token_budget=st.sampled_from([6, 16, 40, 128]),
        max_jobs=st.integers(1, 6),
        page=st.just(page),
        caching=st.just(caching),
    )


def _job(name: str, plan: Plan) -> Job:
    job = make_job(
        name,
        STEMS[plan.stem][: plan.length],
        plan.kind,
        root=(ROOT, root_hash(b"other"))[plan.stem == len(STEMS) - 1],
        max_tokens=plan.answer,
        temperature=float(plan.sampled),
        logprobs=1 if plan.scored else None,
        prompt_logprobs=1 if plan.scored else None,
    )
    return replace(job, priority=plan.priority)


@functools.cache
def _alone(stem: int, length: int, sampled: bool) -> tuple[Sampled, ...]:
    """What a job brings that nothing disturbs, with all its logprobs."""
    engine, _ = audited(token_budget=1024)
    engine.add(_job("a", Plan(stem, length, LONGEST_ANSWER, JobKind.LOCAL, 0, sampled, True, 0, 0, None)))
    out: list[Sampled] = []
    while not (step := engine.step()).idle:
        out += step.sampled
    return tuple(out)


@functools.cache
def _kv(stem: int, length: int, page: int) -> bytes:
    """The prompt's pages, as a prefill worker sends them."""
    engine, _ = audited(page=page, token_budget=1024)
    engine.add(_job("a", Plan(stem, length, 1, JobKind.PREFILL, 0, False, False, 0, 0, None)))
    blocks = engine.step().progress[-1].blocks
    data = bytearray(len(blocks) * engine.pages.layout.block_bytes)
    engine.pages.read(blocks, memoryview(data))
    return bytes(data)


@dataclass
class Life:
    """What became of one job. due: the step at which its transfer is over. held: what its pages had in them when it
    was stopped."""

    plan: Plan
    job: Job
    sampled: list[Sampled] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    added: bool = False
    gone: bool = False
    due: int | None = None
    told: int = 0
    blocks: tuple[int, ...] = ()
    resident: int = 0
    held: bytes | None = None

    @property
    def known(self) -> tuple[int, ...]:
        """All tokens of it that the engine knows."""
        plan = self.plan
        first = (_alone(plan.stem, plan.length, plan.sampled)[0].token,) if plan.kind is JobKind.DECODE else ()
        return self.job.tokens + first + tuple(one.token for one in self.sampled)

    @property
    def export(self) -> JobKey:
        return JobKey(f"export of {self.job.key.request}", 1)

    @property
    def over(self) -> bool:
        return self.gone or (bool(self.outcomes) and self.plan.kind is not JobKind.PREFILL)


class Driver:
    """Plays a load against an engine, and holds what must hold at every step and at the end."""

    def __init__(self, load: Load) -> None:
        self.load = load
        longest = max(plan.length + plan.answer for plan in load.plans)
        self.blocks = max(2, math.ceil(longest / load.page) + load.spare_blocks)
        budget = max(load.token_budget, load.max_jobs)
        self.engine, self.runner = audited(
            blocks=self.blocks, token_budget=budget, max_jobs=load.max_jobs, page=load.page, caching=load.caching
        )
        self.lives = [Life(plan, _job(f"j{index}", plan)) for index, plan in enumerate(load.plans)]
        self.by_key = {life.job.key: life for life in self.lives}
        # Each job in turn may be passed over, read its prompt, write its answer and linger.
        room = budget - load.max_jobs + 1
        self.bound = 60 + sum(
            (math.ceil((plan.length + plan.answer) / room) + 1) * (PATIENCE + load.max_jobs)
            + plan.answer
            + plan.lingers
            for plan in load.plans
        )

    def run(self) -> None:
        for step in range(self.bound):
            for life in self.lives:
                self._act(life, step)
            self._step(step)
            if all(life.over for life in self.lives):
                break
        else:
            raise AssertionError(f"not over after {self.bound} steps")
        for life in self.lives:
            self._judge(life)
        end = self.engine.step()
        assert end.idle
        assert (end.load.free_blocks, end.load.running, end.load.waiting) == (self.blocks, 0, 0)
        assert (end.kv.allocated, end.kv.used) == (0, 0)
        self.engine.check()

    def _act(self, life: Life, step: int) -> None:
        """What router and transfers do before a step."""
        plan, key = life.plan, life.job.key
        if life.over:
            return
        if plan.leaves is not None and step >= plan.leaves:
            self._let_go(life)
        elif life.held is not None:
            if life.due is None or step >= life.due:
                self._let_go(life)
        elif not life.added:
            if step >= plan.arrives:
                self._add(life, step)
        elif life.due is not None and step >= life.due:
            life.due = None
            if plan.kind is JobKind.DECODE:
                self._deliver(life)
            else:
                self._collect(life)
                self.engine.remove(key)
                life.gone = True
        elif plan.holds is not None and step >= plan.holds and life.due is None and plan.kind is not JobKind.PREFILL:
            self._hold(life, step)

    def _hold(self, life: Life, step: int) -> None:
        progress = self.engine.hold(life.job.key)
        if progress is None:
            return  # over, and soon told
        assert progress.computed_tokens < len(life.known)
        life.blocks, life.due = progress.blocks, step + life.plan.lingers
        life.held = self._read(life.blocks)
        whole = min(progress.computed_tokens, life.plan.length) // self.load.page * self.engine.pages.layout.block_bytes
        assert life.held[:whole] == _kv(life.plan.stem, life.plan.length, self.load.page)[:whole]
        if progress.computed_tokens:
            tokens = life.known[: progress.computed_tokens]
            job = make_job(life.export.request, tokens, JobKind.EXPORT, root=life.job.root)
            admission = self.engine.add(job)
            whole = len(tokens) // self.load.page
            assert (admission.resident_tokens, len(admission.blocks)) == (len(tokens), len(life.blocks))
            assert self._read(admission.blocks[:whole]) == self._read(life.blocks[:whole])
            life.blocks, life.held = admission.blocks, self._read(admission.blocks)

    def _let_go(self, life: Life) -> None:
        """The pages that were exported are as they were, whoever goes first."""
        keys = [life.job.key, life.export]
        for key in keys if life.plan.stem % 2 else reversed(keys):
            assert life.held is None or self._read(life.blocks) == life.held
            self.engine.remove(key)
            self.engine.check()
        life.gone = True

    def _read(self, blocks: tuple[int, ...]) -> bytes:
        data = bytearray(len(blocks) * self.engine.pages.layout.block_bytes)
        if blocks:
            self.engine.pages.read(blocks, memoryview(data))
        return bytes(data)

    def _add(self, life: Life, step: int) -> None:
        try:
            admission = self.engine.add(life.job)
        except Overloaded as refusal:
            assert refusal.retry_after_s
            return
        life.added = True
        if life.plan.kind is JobKind.DECODE:
            assert admission.resident_tokens % self.load.page == 0
            assert admission.resident_tokens < life.plan.length
            life.blocks, life.resident = admission.blocks, admission.resident_tokens // self.load.page
            life.due = step + life.plan.lingers

    def _deliver(self, life: Life) -> None:
        plan, size = life.plan, self.engine.pages.layout.block_bytes
        data = _kv(plan.stem, plan.length, self.load.page)[life.resident * size :]
        self.engine.pages.write(life.blocks[life.resident :], memoryview(data))
        self.engine.activate(life.job.key, _alone(plan.stem, plan.length, plan.sampled)[0].token)

    def _collect(self, life: Life) -> None:
        """The pages of a prompt are as another worker would have made them, up to the last token."""
        data = self._read(life.blocks)
        whole = life.plan.length // self.load.page * self.engine.pages.layout.block_bytes
        assert data[:whole] == _kv(life.plan.stem, life.plan.length, self.load.page)[:whole]

    def _step(self, step: int) -> None:
        batches = len(self.runner.batches)
        output = self.engine.step()
        self.engine.check()
        if len(self.runner.batches) == batches:
            assert output.idle != bool(output.progress), "a step did nothing"
            assert not output.sampled
        for progress in output.progress:
            life = self.by_key[progress.key]
            assert progress.computed_tokens > life.told, "told twice"
            life.told = progress.computed_tokens
            assert progress.blocks[: len(life.blocks)] == life.blocks, "a transfer's pages were taken away"
            life.blocks = progress.blocks
        for one in output.sampled:
            self.by_key[one.key].sampled.append(one)
        for ending in output.finished:
            life = self.by_key[ending.key]
            assert not life.gone
            assert ending.error is None, ending.error
            life.outcomes.append(ending.outcome)
        for one in output.sampled:
            life = self.by_key[one.key]
            assert not life.gone
            if life.plan.kind is JobKind.PREFILL:
                life.due = step + 1 + life.plan.lingers
        assert output.load.running + output.load.waiting <= self.load.max_jobs
        assert output.kv.used <= output.kv.allocated <= self.blocks * self.load.page

    def _judge(self, life: Life) -> None:
        """It ended once, with the tokens of an undisturbed run, each told once."""
        plan = life.plan
        alone = _alone(plan.stem, plan.length, plan.sampled)
        first = 1 if plan.kind is JobKind.DECODE else 0
        if plan.kind is JobKind.PREFILL:
            wanted = 0 if life.gone and not life.sampled else 1
            assert life.outcomes == ([Outcome.LENGTH] if plan.answer == 1 and wanted else [])
        else:
            wanted = len(life.sampled) if life.gone else plan.answer - first
            assert life.outcomes == ([] if life.gone else [Outcome.LENGTH])
        assert [(one.position, one.token) for one in life.sampled] == [
            (one.position, one.token) for one in alone[first : first + wanted]
        ]
        assert all(one.cached_tokens == 0 for one in life.sampled[1:])
        self._judge_logprobs(life, alone[first : first + wanted])

    def _judge_logprobs(self, life: Life, alone: tuple[Sampled, ...]) -> None:
        scored = life.plan.scored
        assert [one.logprob for one in life.sampled] == [one.logprob if scored else None for one in alone]
        prompts: list[tuple[TokenLogprob, ...]] = [one.prompt_logprobs for one in life.sampled]
        due = scored and life.plan.kind is not JobKind.DECODE
        assert prompts == [one.prompt_logprobs if due else () for one in alone]
        if due and life.sampled:
            assert len(prompts[0]) == life.plan.length - 1
            assert life.sampled[0].cached_tokens == 0


def _runs(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.timeout(300)
@_runs(1200)
@given(loads(page=16, caching=True))
def test_every_load_is_served_and_every_page_accounted_for(load: Load) -> None:
    Driver(load).run()


@pytest.mark.timeout(300)
@_runs(500)
@given(loads(page=32, caching=True))
def test_so_it_is_with_pages_of_two_named_blocks(load: Load) -> None:
    Driver(load).run()


@pytest.mark.timeout(300)
@_runs(300)
@given(loads(page=16, caching=False))
def test_so_it_is_without_a_prefix_cache(load: Load) -> None:
    Driver(load).run()


@settings(max_examples=50)
@given(blocks=st.integers(2, 8), length=st.integers(1, 70), answer=st.integers(1, 80))
def test_what_can_never_fit_is_refused_at_once_and_all_else_is_served(blocks: int, length: int, answer: int) -> None:
    engine, _ = audited(blocks=blocks)
    job = make_job("a", prompt(1, length), max_tokens=answer)
    if length + answer - 1 > blocks * 16:
        try:
            engine.add(job)
            raise AssertionError("it was taken")
        except ContextLengthExceeded as refusal:
            assert refusal.kind.code == "context_length_exceeded"
            assert refusal.remedy
        assert engine.step().load.running == engine.step().load.waiting == 0
        return
    engine.add(job)
    tokens = 0
    while not (step := engine.step()).idle:
        tokens += len(step.sampled)
    assert tokens == answer
    assert JobKey("a", 1) == job.key
