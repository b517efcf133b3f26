"""The scheduler's rules, one by one: who computes, who waits, who gives way, and how it goes on after that."""

from dataclasses import replace

import pytest
from fixtures.audited_replica import AuditedRunner, audited
from fixtures.engine_driver import Trace, make_job, prompt

from headrace.core.errors import ContextLengthExceeded, Overloaded
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.engine.engine import StepOutput
from headrace.engine.replica import Replica
from headrace.engine.schedule import PATIENCE
from headrace.engine.sequence import State


def urgent(job: Job, priority: int) -> Job:
    return replace(job, priority=priority)


def computed(engine: Replica, *jobs: Job) -> list[int]:
    """How many tokens of each job have KV; 0 for one that is not here."""
    return [engine._live[job.key].computed if job.key in engine._live else 0 for job in jobs]


def until_first(engine: Replica, job: Job, limit: int = 500) -> list[StepOutput]:
    steps: list[StepOutput] = []
    while not any(one.key == job.key for step in steps for one in step.sampled):
        steps.append(engine.step())
        assert len(steps) < limit
    return steps


def drain(engine: Replica) -> None:
    while not engine.step().idle:
        pass


class TestBudget:
    def test_streams_come_first_and_prompts_get_the_rest(self) -> None:
        engine, runner = audited(token_budget=20)
        streams = [make_job(f"s{index}", prompt(index, 4), max_tokens=100) for index in range(3)]
        for job in streams:
            engine.add(job)
        engine.step()
        engine.add(make_job("p", prompt(9, 200)))
        engine.step()
        assert sorted(runner.batches[-1]) == [(0, 17), (4, 1), (4, 1), (4, 1)]

    def test_a_step_never_exceeds_the_budget(self) -> None:
        engine, runner = audited(token_budget=16)
        for index in range(8):
            engine.add(make_job(f"j{index}", prompt(index, 50), max_tokens=10))
        drain(engine)
        assert max(sum(count for _, count in batch) for batch in runner.batches) == 16

    def test_max_num_seqs(self) -> None:
        engine, _ = audited(max_jobs=2)
        engine.add(make_job("a", prompt(1, 20)))
        engine.add(make_job("b", prompt(2, 20)))
        with pytest.raises(Overloaded):
            engine.add(make_job("c", prompt(3, 20)))


class TestTurns:
    def test_long_prompts_take_turns(self) -> None:
        engine, _ = audited(blocks=256, token_budget=32)
        jobs = [make_job(f"j{index}", prompt(index, 960)) for index in range(3)]
        for job in jobs:
            engine.add(job)
        seen = []
        for _ in range(6):
            engine.step()
            seen.append(computed(engine, *jobs))
        assert seen == [[32, 0, 0], [32, 32, 0], [32, 32, 32], [64, 32, 32], [64, 64, 32], [64, 64, 64]]

    def test_a_short_prompt_behind_huge_ones_waits_one_round(self) -> None:
        engine, _ = audited(blocks=600, token_budget=64)
        huge = [make_job(f"h{index}", prompt(index, 4000)) for index in range(2)]
        for job in huge:
            engine.add(job)
        engine.step()
        short = make_job("short", prompt(9, 30))
        engine.add(short)
        assert len(until_first(engine, short)) <= 3
        assert all(count < 400 for count in computed(engine, *huge))

    def test_what_the_first_in_line_leaves_goes_on_and_costs_no_turn(self) -> None:
        engine, _ = audited(blocks=128, token_budget=48)
        first, *others = [make_job(f"j{index}", prompt(index, length)) for index, length in enumerate((30, 400, 400))]
        for job in (first, *others):
            engine.add(job)
        engine.step()
        assert computed(engine, first, *others) == [30, 18, 0]
        engine.step()  # one stream, and the turn of the second
        assert computed(engine, *others) == [18 + 47, 0]
        engine.step()
        assert computed(engine, *others) == [18 + 47, 47]


class TestFound:
    @staticmethod
    def batches(kind: JobKind) -> list[list[tuple[int, int]]]:
        """What is computed beside and for a prompt of `kind` of which 64 tokens are here, until its first token."""
        engine, runner = audited(blocks=256, token_budget=32)
        engine.add(make_job("before", prompt(1, 64), max_tokens=1))
        drain(engine)
        for job in (make_job("stream", prompt(2, 8), max_tokens=90), make_job("long", prompt(3, 500))):
            engine.add(job)
        for _ in range(3):
            engine.step()
        job = make_job("job", prompt(1, 64) + prompt(4, 100), kind)
        engine.add(job)
        until_first(engine, job)
        return runner.batches

    def test_telling_of_it_changes_no_batch_and_costs_nobody_a_turn(self) -> None:
        assert self.batches(JobKind.PREFILL) == self.batches(JobKind.LOCAL)

    def test_prompts_that_begin_together_are_told_of_together(self) -> None:
        engine, runner = audited(token_budget=32)
        engine.add(make_job("before", prompt(1, 64), max_tokens=1))
        drain(engine)
        ran = len(runner.batches)
        jobs = [make_job(name, prompt(1, 64) + prompt(start, 30), JobKind.PREFILL) for start, name in enumerate("xyz")]
        for job in jobs:
            engine.add(job)
        step = engine.step()
        assert [(one.key, one.computed_tokens) for one in step.progress] == [(job.key, 64) for job in jobs]
        assert len(runner.batches) == ran
        engine.step()
        assert len(runner.batches) == ran + 1


class TestPriorities:
    def test_the_urgent_are_admitted_first_and_the_older_among_equals(self) -> None:
        engine, _ = audited(blocks=8, token_budget=128)
        engine.add(make_job("running", prompt(1, 60), max_tokens=40))
        engine.step()
        jobs = [urgent(make_job(f"j{p}{n}", prompt(5 * p + n, 100), max_tokens=2), p) for p in (2, 1) for n in (0, 1)]
        for job in jobs:
            engine.add(job)
        order: list[str] = []
        while not (step := engine.step()).idle:
            order += [one.key.request for one in step.sampled if one.position == 0]
        assert order == ["j10", "j11", "j20", "j21"]

    def test_urgent_prompts_get_the_chunks_first(self) -> None:
        engine, _ = audited(blocks=128, token_budget=32)
        low, high = urgent(make_job("low", prompt(1, 500)), 1), make_job("high", prompt(2, 80), max_tokens=1)
        engine.add(low)
        engine.step()
        engine.add(high)
        until_first(engine, high)
        assert computed(engine, low) == [32 + 96 - 80]

    def test_the_urgent_give_way_last(self) -> None:
        engine, _ = audited(blocks=11, token_budget=128)
        jobs = [
            urgent(make_job(f"j{p}", prompt(p, 33), max_tokens=60, ignore_eos=True), priority)
            for p, priority in ((0, 3), (1, 5), (2, 1))
        ]
        for job in jobs:
            engine.add(job)
        while not engine.step().preempted:
            pass
        # The least urgent that may give way, although the oldest is less urgent than the third.
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.WAITING, State.RUNNING]

    def test_nobody_waits_for_ever_behind_the_urgent(self) -> None:
        engine, _ = audited(blocks=8, token_budget=128)
        low = urgent(make_job("low", prompt(0, 100), max_tokens=2), 9)
        engine.add(make_job("first", prompt(1, 100), max_tokens=2))
        engine.step()
        engine.add(low)
        passed = 0
        for number in range(3 * PATIENCE):
            engine.add(make_job(f"u{number}", prompt(3 + number, 100), max_tokens=2))
            ended: list[str] = []
            while not ended:
                ended = [one.key.request for one in engine.step().finished]
            if "low" in ended:
                break
            passed += ended[0].startswith("u")
        assert passed == PATIENCE

    def test_a_prompt_gets_a_chunk_however_many_urgent_ones_there_are(self) -> None:
        engine, _ = audited(blocks=600, token_budget=16)
        low, high = urgent(make_job("low", prompt(1, 300)), 1), make_job("high", prompt(2, 3000))
        engine.add(low)
        engine.add(high)
        for _ in range(PATIENCE):
            engine.step()
        assert computed(engine, low) == [0]
        engine.step()
        assert computed(engine, low) == [16]
        for _ in range(PATIENCE + 1):
            engine.step()
        assert computed(engine, low) == [32]


class TestProof:
    @pytest.mark.parametrize(
        ("kind", "length", "answer", "fits"),
        [
            (JobKind.LOCAL, 100, 29, True),  # 128 tokens need KV: the last one does not
            (JobKind.LOCAL, 100, 30, False),
            (JobKind.DECODE, 100, 29, True),
            (JobKind.DECODE, 100, 30, False),
            (JobKind.PREFILL, 128, 1000, True),
            (JobKind.PREFILL, 129, 1, False),
        ],
    )
    def test_what_can_never_fit_is_refused_at_once(self, kind: JobKind, length: int, answer: int, fits: bool) -> None:
        engine, _ = audited(blocks=8)
        job = make_job("a", prompt(1, length), kind, max_tokens=answer)
        if fits:
            engine.add(job)
            engine.remove(job.key)
        else:
            with pytest.raises(ContextLengthExceeded, match="KV pages") as refusal:
                engine.add(job)
            assert refusal.value.kind.code == "context_length_exceeded"
        engine.check()


def alone(job: Job) -> list[tuple[int, int]]:
    engine, _ = audited()
    trace = Trace()
    engine.add(job)
    trace.run(engine)
    return [(one.position, one.token) for one in trace.sampled(job)]


class TestPreemption:
    def pressed(self, *jobs: Job, blocks: int, **options: int) -> tuple[Replica, AuditedRunner, Trace]:
        """The jobs up to the step in which the first of them had to give way."""
        engine, runner = audited(blocks=blocks, token_budget=256, **options)
        trace = Trace()
        for job in jobs:
            engine.add(job)
        while not trace.see(engine.step()).preempted:
            assert not trace.steps[-1].idle
        return engine, runner, trace

    def test_the_cheapest_gives_way(self) -> None:
        jobs = [
            make_job(name, prompt(index, length), max_tokens=60, ignore_eos=True)
            for index, (name, length) in enumerate((("old", 33), ("cheap", 20), ("dear", 60)))
        ]
        engine, _, _ = self.pressed(*jobs, blocks=11)
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.WAITING, State.RUNNING]

    def test_what_others_hold_too_costs_nothing(self) -> None:
        """The longest sequence is the cheapest if others keep most of its pages alive."""
        jobs = [
            make_job(name, tokens, max_tokens=60, ignore_eos=True)
            for name, tokens in (
                ("old", prompt(1, 66)),
                ("lone", prompt(2, 40)),
                ("twin", prompt(1, 64) + prompt(3, 4)),
            )
        ]
        engine, _, _ = self.pressed(*jobs, blocks=11)
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.RUNNING, State.WAITING]

    def test_the_youngest_among_equals(self) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=60, ignore_eos=True) for index in range(3)]
        engine, _, _ = self.pressed(*jobs, blocks=8)
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.RUNNING, State.WAITING]

    def test_never_the_oldest_though_it_is_the_cheapest(self) -> None:
        jobs = [
            make_job(name, prompt(index, length), max_tokens=60, ignore_eos=True)
            for index, (name, length) in enumerate((("old", 4), ("dear", 60)))
        ]
        engine, _, _ = self.pressed(*jobs, blocks=8)
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.WAITING]

    def test_never_what_a_transfer_uses(self) -> None:
        engine, _ = audited(blocks=9, token_budget=256)
        held = make_job("held", prompt(1, 30), JobKind.PREFILL)
        streams = [make_job(f"j{index}", prompt(2 + index, 30), max_tokens=60, ignore_eos=True) for index in range(2)]
        granted = make_job("granted", prompt(9, 30), JobKind.DECODE)
        engine.add(held)
        engine.add(granted)
        for job in streams:
            engine.add(job)
        while not engine.step().preempted:
            pass
        states = [engine._live[job.key].state for job in (held, granted, *streams)]
        assert states == [State.HELD, State.GRANTED, State.RUNNING, State.WAITING]

    def test_never_a_prompt_whose_pages_are_being_sent(self) -> None:
        """It is the youngest, the least urgent and costs nothing yet, but a transfer follows it."""
        engine, _ = audited(blocks=13, token_budget=5, max_jobs=4)
        streams = [make_job(f"j{index}", prompt(2 + index, 14), max_tokens=60, ignore_eos=True) for index in range(2)]
        for job in streams:
            engine.add(job)
        until_first(engine, streams[1])
        sent = urgent(make_job("sent", prompt(1, 140), JobKind.PREFILL), 9)
        engine.add(sent)
        while not engine.step().preempted:
            assert engine._live[sent.key].state is State.RUNNING
        assert [engine._live[job.key].state for job in (*streams, sent)] == [
            State.RUNNING,
            State.WAITING,
            State.RUNNING,
        ]

    def test_it_goes_on_exactly_and_says_nothing_twice(self) -> None:
        jobs = [
            make_job(f"j{index}", prompt(index, 30), max_tokens=60, temperature=1.0, seed=index, logprobs=2)
            for index in range(4)
        ]
        engine, _, trace = self.pressed(*jobs, blocks=10)
        trace.run(engine)
        assert sum(step.preempted for step in trace.steps) >= 2
        for job in jobs:
            told = trace.sampled(job)
            assert [(one.position, one.token) for one in told] == alone(job)
            assert all(one.logprob is not None and one.logprob.token == one.token for one in told)
            assert len(trace.finished(job)) == 1
        engine.check()

    def test_its_own_pages_are_found_again(self) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 40), max_tokens=30, ignore_eos=True) for index in range(2)]
        engine, runner, trace = self.pressed(*jobs, blocks=7)
        lost = engine._live[jobs[1].key]
        known = len(lost.tokens)
        before = runner.computed
        trace.run(engine)
        # It comes back when the other is done: the pages that one used meanwhile are gone, the rest is found.
        rest = sum(len(trace.tokens(job)) for job in jobs) - sum(len(step.sampled) for step in trace.steps)
        assert rest == 0
        assert runner.computed - before < known + 60
        assert [trace.tokens(job) for job in jobs] == [[token for _, token in alone(job)] for job in jobs]

    def test_a_prompt_that_is_being_scored_begins_again(self) -> None:
        old = make_job("old", prompt(1, 31), max_tokens=60, ignore_eos=True)
        scored = make_job("scored", prompt(2, 90), max_tokens=3, prompt_logprobs=1)
        undisturbed, _ = audited()
        undisturbed.add(scored)
        expected = Trace().run(undisturbed).sampled(scored)
        engine, _ = audited(blocks=9, token_budget=4, max_jobs=4)
        trace = Trace()
        engine.add(old)
        engine.add(scored)
        trace.run(engine)
        assert sum(step.preempted for step in trace.steps) == 1
        told = trace.sampled(scored)
        assert [(one.token, one.prompt_logprobs) for one in told] == [
            (one.token, one.prompt_logprobs) for one in expected
        ]
        assert len(told[0].prompt_logprobs) == 89

    def test_it_is_counted(self) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=60, ignore_eos=True) for index in range(3)]
        _, _, trace = self.pressed(*jobs, blocks=8)
        assert [step.preempted for step in trace.steps if step.preempted] == [1]

    def test_no_grant_passes_those_who_wait_for_pages(self) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=60, ignore_eos=True) for index in range(3)]
        engine, _, trace = self.pressed(*jobs, blocks=8)
        late = make_job("late", prompt(9, 4), JobKind.DECODE)
        with pytest.raises(Overloaded):
            engine.add(late)
        trace.run(engine)
        engine.add(late)
        engine.remove(late.key)


class TestTwins:
    def test_four_equal_prompts_are_computed_once_and_share_their_pages(self) -> None:
        engine, runner = audited(token_budget=32)
        jobs = [
            replace(
                make_job("r", prompt(1, 100), max_tokens=8, temperature=1.0), key=JobKey(f"r{choice}", 1), choice=choice
            )
            for choice in range(4)
        ]
        trace = Trace()
        for job in jobs:
            engine.add(job)
        while any(not trace.sampled(job) for job in jobs):
            trace.see(engine.step())
        # Six full pages once, and each its own copy of the seventh.
        assert trace.steps[-1].load.free_blocks == 64 - 6 - 4
        ahead = sum(len(trace.sampled(job)) - 1 for job in jobs)
        assert runner.computed - ahead == 100 + 3
        trace.run(engine)
        assert [one.cached_tokens for job in jobs for one in trace.sampled(job)[:1]] == [0, 99, 99, 99]
        assert [[(one.position, one.token) for one in trace.sampled(job)] for job in jobs] == [
            alone(job) for job in jobs
        ]
        assert len({tuple(trace.tokens(job)) for job in jobs}) == 4
        engine.check()

    def test_prompts_that_part_are_shared_up_to_there(self) -> None:
        engine, runner = audited(token_budget=32)
        shared, ends = prompt(1, 70), (prompt(2, 30), prompt(3, 30), prompt(4, 30))
        jobs = [make_job(f"j{index}", shared + end, max_tokens=1) for index, end in enumerate(ends)]
        for job in jobs:
            engine.add(job)
        drain(engine)
        # The first chunk that passes the parting belongs to one of them alone.
        assert runner.computed == 70 + 3 * 30

    def test_a_few_tokens_are_not_worth_a_wait(self) -> None:
        engine, _ = audited(token_budget=16)
        jobs = [make_job(f"j{start}", prompt(1, 15) + prompt(start, 60)) for start in (2, 3)]
        for job in jobs:
            engine.add(job)
        engine.step()
        assert [engine._live[job.key].state for job in jobs] == [State.RUNNING, State.RUNNING]

    @pytest.mark.parametrize("how", ["removed", "preempted"])
    def test_when_the_other_goes_it_goes_on_by_itself(self, how: str) -> None:
        engine, runner = audited(blocks=12, token_budget=16)
        stream = make_job("stream", prompt(5, 30), max_tokens=60, ignore_eos=True)
        first, second = (make_job(name, prompt(1, 90), max_tokens=2) for name in ("first", "second"))
        engine.add(stream)
        until_first(engine, stream)
        engine.add(first)
        engine.add(second)
        for _ in range(3):
            engine.step()
        assert [engine._live[one.key].state for one in (first, second)] == [State.RUNNING, State.WAITING]
        done = computed(engine, first)[0]
        before = runner.computed
        if how == "removed":
            engine.remove(first.key)
        else:
            engine._allocator.preempt(engine._live[first.key])
        engine.step()
        states = [engine._live[one.key].state for one in (first, second) if one.key in engine._live]
        assert State.RUNNING in states
        steps = until_first(engine, second)
        # What the first one computed is not lost, and the prompt is not computed twice.
        assert runner.computed - before <= 90 - done + 2 * (len(steps) + 2)
        drain(engine)
        engine.check()

    def test_the_urgent_do_not_wait_for_the_less_urgent(self) -> None:
        engine, _ = audited(token_budget=16)
        low, high = urgent(make_job("low", prompt(1, 200)), 1), make_job("high", prompt(1, 200))
        engine.add(low)
        engine.step()
        engine.add(high)
        until_first(engine, high)
        assert computed(engine, low)[0] < 200

    def test_who_waits_for_a_twin_holds_up_nobody(self) -> None:
        engine, _ = audited(token_budget=32)
        first, second, other = (make_job(name, prompt(start, 200)) for name, start in (("a", 1), ("b", 1), ("c", 2)))
        for job in (first, second, other):
            engine.add(job)
        for _ in range(4):
            engine.step()
        assert computed(engine, first, second, other) == [64, 0, 64]

    def test_without_a_prefix_cache_nobody_waits(self) -> None:
        engine, runner = audited(caching=False)
        for name in "abc":
            engine.add(make_job(name, prompt(1, 40), max_tokens=1))
        drain(engine)
        assert runner.computed == 120


class TestPartialPages:
    @pytest.mark.parametrize("page", [16, 32, 64])
    @pytest.mark.parametrize(("length", "common"), [(100, 99), (100, 90), (100, 64), (96, 96), (40, 7), (40, 1)])
    def test_only_what_differs_is_computed(self, page: int, length: int, common: int) -> None:
        engine, runner = audited(page=page, blocks=32)
        first = make_job("a", prompt(1, length), max_tokens=5)
        second = make_job("b", prompt(1, common) + prompt(7, length - common), max_tokens=5)
        expected = alone(second)
        engine.add(first)
        drain(engine)
        before = runner.computed
        trace = Trace()
        engine.add(second)
        while not trace.steps or not trace.steps[-1].idle:
            trace.steps.append(engine.step())
        found = min(common, length - 1)
        assert trace.sampled(second)[0].cached_tokens == found
        assert runner.computed - before == length - found + 4
        assert [(one.position, one.token) for one in trace.sampled(second)] == expected
        engine.check()

    def test_a_page_is_copied_while_its_owner_goes_on_writing_it(self) -> None:
        engine, _ = audited()
        first = make_job("a", prompt(1, 40), max_tokens=20, ignore_eos=True)
        second = make_job("b", prompt(1, 36) + prompt(7, 6), max_tokens=20)
        trace = Trace()
        engine.add(first)
        for _ in range(3):
            trace.see(engine.step())
        engine.add(second)
        trace.run(engine)
        assert trace.sampled(second)[0].cached_tokens == 36
        for job in (first, second):
            assert [(one.position, one.token) for one in trace.sampled(job)] == alone(job)

    def test_the_last_free_page_may_be_its_own_source(self) -> None:
        engine, _ = audited(blocks=2)
        first, second = make_job("a", prompt(3, 20), max_tokens=5), make_job("b", prompt(3, 24), max_tokens=5)
        engine.add(first)
        drain(engine)
        trace = Trace()
        engine.add(second)
        while not trace.steps or not trace.steps[-1].idle:
            trace.steps.append(engine.step())
        assert trace.sampled(second)[0].cached_tokens == 20
        assert [(one.position, one.token) for one in trace.sampled(second)] == alone(second)

    def test_copies_are_made_in_the_order_in_which_pages_were_taken(self) -> None:
        """The first copy's source is the second one's target."""
        engine, _ = audited(blocks=3)
        for name, start in (("p", 1), ("x", 2), ("z", 3)):
            engine.add(make_job(name, prompt(start, 9), max_tokens=1))
            drain(engine)
        first, second = (make_job(f"w{start}", (*prompt(start, 8), 7), max_tokens=2) for start in (2, 3))
        trace = Trace()
        engine.add(first)
        engine.add(second)
        while not trace.steps or not trace.steps[-1].idle:
            trace.steps.append(engine.step())
        for job in (first, second):
            assert trace.sampled(job)[0].cached_tokens == 8
            assert [(one.position, one.token) for one in trace.sampled(job)] == alone(job)

    def test_a_decode_job_takes_whole_pages_and_a_prefill_job_parts_too(self) -> None:
        engine, _ = audited()
        engine.add(make_job("a", prompt(1, 60), max_tokens=4))
        drain(engine)
        granted = make_job("d", prompt(1, 60), JobKind.DECODE)
        assert engine.add(granted).resident_tokens == 48
        engine.remove(granted.key)
        sent = make_job("p", prompt(1, 60), JobKind.PREFILL)
        engine.add(sent)
        (one,) = until_first(engine, sent)[-1].sampled
        assert one.cached_tokens == 59
        engine.remove(sent.key)
        engine.check()

    def test_a_prompt_to_be_scored_takes_nothing_and_leaves_everything(self) -> None:
        engine, runner = audited(token_budget=16)
        engine.add(make_job("a", prompt(1, 60), max_tokens=1))
        drain(engine)
        before = runner.computed
        scored = make_job("b", prompt(1, 60) + prompt(2, 20), max_tokens=1, prompt_logprobs=0)
        engine.add(scored)
        trace = Trace()
        while not trace.steps or not trace.steps[-1].idle:
            trace.steps.append(engine.step())
        assert runner.computed - before == 80
        (one,) = trace.sampled(scored)
        assert one.cached_tokens == 0
        assert [logprob.token for logprob in one.prompt_logprobs] == list(scored.tokens[1:])
        assert engine.add(make_job("c", prompt(1, 60) + prompt(2, 20))).resident_tokens == 64

    def test_a_resumed_request_is_not_scored_again(self) -> None:
        engine, runner = audited()
        engine.add(make_job("a", prompt(1, 60), max_tokens=1))
        drain(engine)
        before = runner.computed
        resumed = make_job("b", prompt(1, 60), prompt_len=50, max_tokens=11, prompt_logprobs=0)
        engine.add(resumed)
        (one,) = engine.step().sampled
        assert one.prompt_logprobs == ()
        assert runner.computed - before == 1


class TestWaste:
    @pytest.mark.parametrize(("page", "most"), [(16, 0.04), (64, 0.1)])
    def test_waste_at_steady_load_is_half_a_page_a_sequence(self, page: int, most: float) -> None:
        """Contexts of 600 tokens on average: 8 / 608 of what is allocated with pages of 16."""
        engine, _ = audited(blocks=32 * 1024 // page, page=page, token_budget=512, max_jobs=32)
        ratios: list[float] = []
        wasted: list[float] = []
        started = 0
        for step in range(300):
            while True:
                length, answer = 200 + started * 53 % 601, 60 + started * 29 % 340
                job = make_job(f"j{started}", prompt(started, length), max_tokens=answer, ignore_eos=True)
                try:
                    engine.add(job)
                except Overloaded:
                    break
                started += 1
            output = engine.step()
            if step >= 150:
                ratios.append(1 - output.kv.used / output.kv.allocated)
                wasted.append((output.kv.allocated - output.kv.used) / output.load.running)
        mean = sum(wasted) / len(wasted)
        assert abs(mean - page / 2) < page / 8
        assert max(ratios) < most
