"""Steps with prompts stay below a time: the arithmetic on machines of any speed, and a replica that keeps to it."""

from collections.abc import Callable

import pytest
from fixtures.audited_replica import AuditedRunner, audited
from fixtures.engine_driver import Trace, make_job, prompt
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.jobs import JobKind
from headrace.engine.pace import Pace

LIMIT_S = 0.050
AIM_S = 0.045


def play(cost_s: Callable[[int], float], steps: int, pace: Pace, most: int = 100_000) -> tuple[Pace, list[int]]:
    """The pace after `steps` steps on a machine, and how many tokens each had."""
    sizes = []
    for _ in range(steps):
        sizes.append(min(most, pace.prompt_tokens_within(LIMIT_S)))
        pace = pace.after(sizes[-1], cost_s(sizes[-1]))
    return pace, sizes


class TestArithmetic:
    @given(fixed_ms=st.floats(0, 20), token_ms=st.floats(0.01, 10))
    def test_a_step_comes_close_to_the_limit_and_never_passes_it(self, fixed_ms: float, token_ms: float) -> None:
        def cost_s(tokens: int) -> float:
            return (fixed_ms + token_ms * tokens) / 1000

        _, sizes = play(cost_s, 100, Pace())
        assert all(cost_s(size) <= max(LIMIT_S, cost_s(BLOCK_TOKENS)) for size in sizes)
        assert sizes[-1] >= max(BLOCK_TOKENS, (AIM_S - cost_s(0)) / (token_ms / 1000) - 3)

    def test_the_first_step_is_the_smallest(self) -> None:
        assert Pace().prompt_tokens_within(1000.0) == BLOCK_TOKENS

    @pytest.mark.parametrize("slower", [2.0, 4.0, 8.0])
    def test_a_machine_that_becomes_slower_is_followed(self, slower: float) -> None:
        pace, before = play(lambda tokens: 0.0002 * tokens, 30, Pace())
        pace, after = play(lambda tokens: slower * 0.0002 * tokens, 20, pace)
        assert before[-1] * 0.0002 <= LIMIT_S
        assert slower * 0.0002 * after[-1] <= LIMIT_S
        _, again = play(lambda tokens: 0.0002 * tokens, 30, pace)
        assert again[-1] >= before[-1] - 2

    def test_one_slow_step_is_soon_forgotten(self) -> None:
        pace, before = play(lambda tokens: 0.001 * tokens, 30, Pace())
        slow = pace.after(before[-1], 0.5)
        assert slow.prompt_tokens_within(LIMIT_S) < before[-1]
        _, after = play(lambda tokens: 0.001 * tokens, 20, slow)
        assert after[-1] >= before[-1] - 2

    def test_streams_alone_and_short_ends_say_little_about_prompts(self) -> None:
        pace, before = play(lambda tokens: 0.005 + 0.0005 * tokens, 50, Pace())
        assert pace.after(0, 3.0) == pace
        ended = pace.after(2, 0.006)
        assert ended.prompt_tokens_within(LIMIT_S) >= 0.9 * before[-1]


def passed_s(runner: AuditedRunner) -> float:
    """10 ms a step and half a millisecond a token: 70 tokens in 45 ms."""
    return 0.010 * len(runner.batches) + 0.0005 * runner.computed


class TestReplica:
    def test_prompts_get_what_fits_and_streams_are_counted(self) -> None:
        engine, runner = audited(blocks=512, token_budget=256, max_step_s=LIMIT_S, clock=passed_s)
        for job in (make_job("stream", prompt(1, 4), max_tokens=100), make_job("long", prompt(2, 2000))):
            engine.add(job)
        for _ in range(25):
            engine.step()
        sizes = [sum(count for _, count in batch) for batch in runner.batches]
        assert sizes[0] == BLOCK_TOKENS
        assert all(0.010 + 0.0005 * size <= LIMIT_S for size in sizes)
        assert all(65 <= size <= 71 for size in sizes[15:])
        assert all((1 in [count for _, count in batch]) for batch in runner.batches[1:])

    def test_streams_never_wait_for_it(self) -> None:
        """They alone take longer than the limit, and the prompt beside them gets on all the same."""
        engine, runner = audited(
            blocks=512, token_budget=256, max_step_s=0.001, clock=lambda runner: 0.02 * runner.computed
        )
        streams = [make_job(f"s{index}", prompt(index, 4), max_tokens=100) for index in range(5)]
        for job in (*streams, make_job("long", prompt(9, 200))):
            engine.add(job)
        for _ in range(6):
            engine.step()
        assert sorted(count for _, count in runner.batches[-1]) == [1, 1, 1, 1, 1, BLOCK_TOKENS]

    def test_the_budget_of_tokens_holds_too(self) -> None:
        engine, runner = audited(blocks=512, token_budget=40, max_step_s=LIMIT_S, clock=passed_s)
        engine.add(make_job("long", prompt(2, 2000)))
        for _ in range(10):
            engine.step()
        assert [sum(count for _, count in batch) for batch in runner.batches[3:]] == [40] * 7

    def test_without_a_limit_nobody_asks_for_the_time(self) -> None:
        engine, runner = audited(token_budget=64)
        engine.add(make_job("a", prompt(1, 100), max_tokens=3))
        Trace().run(engine)
        assert [count for batch in runner.batches for _, count in batch] == [64, 36, 1, 1]

    def test_a_step_that_only_tells_of_cached_pages_is_no_measure(self) -> None:
        engine, runner = audited(blocks=512, token_budget=256, max_step_s=LIMIT_S, clock=passed_s)
        engine.add(make_job("before", prompt(1, 500), max_tokens=1))
        Trace().run(engine)
        engine.add(make_job("sent", prompt(1, 500) + prompt(2, 100), JobKind.PREFILL))
        told = engine.step()
        assert told.progress
        assert not told.idle
        engine.step()
        assert 50 <= runner.batches[-1][0][1] <= 71
