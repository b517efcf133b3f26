"""What a failed job leaves: pages that it shared may go on being used, cleared ones are found by nobody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from worker_harness import fake_engine, job

from headrace.core.errors import InvalidRequest
from headrace.core.jobs import JobKind, Outcome
from headrace.engine.replica import Replica
from headrace.engine.runner import Drawn, Span

PROMPT = 70
TAIL = (11, 12, 13, 14, 15, 16)


def answer(engine: Replica, name: str) -> list[int]:
    """The tokens of a request that begins like the others here."""
    asked = job(name, prompt=PROMPT, max_tokens=4)
    engine.add(asked)
    tokens: list[int] = []
    for _ in range(12):
        step = engine.step()
        tokens += [sampled.token for sampled in step.sampled if sampled.key == asked.key]
        assert [one.error for one in step.finished if one.outcome is Outcome.FAILED] == []
    return tokens


def fail(engine: Replica, tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on whoever computes the last of these tokens fails."""
    run = engine._runner.run

    def failing(spans: Sequence[Span]) -> list[Drawn | InvalidRequest]:
        drawn = run(spans)
        return [
            InvalidRequest("Its logits are not finite.") if tuple(span.tokens) == tokens else one
            for span, one in zip(spans, drawn, strict=True)
        ]

    monkeypatch.setattr(engine._runner, "run", failing)


def steps(engine: Replica, count: int) -> list[Outcome]:
    return [one.outcome for _ in range(count) for one in engine.step().finished]


@pytest.mark.parametrize("exported", [False, True])
def test_whoever_shared_pages_with_a_failed_job_lets_none_be_found_that_are_cleared(
    exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, right = fake_engine(), answer(fake_engine(), "alone")
    # 1. One answers, and with `exported` stands still while its pages are sent to another worker.
    one = job("one", prompt=PROMPT, max_tokens=50)
    engine.add(one)
    steps(engine, 5)
    sent = job("sent", JobKind.EXPORT, prompt=PROMPT)
    if exported:
        engine.hold(one.key)
        engine.add(sent)
    # 2. Another one begins with the same pages, and fails.
    kind = JobKind.LOCAL if exported else JobKind.PREFILL
    other = replace(job("other", kind, prompt=PROMPT), tokens=one.tokens[: PROMPT - len(TAIL)] + TAIL)
    fail(engine, other.tokens, monkeypatch)
    engine.add(other)
    assert Outcome.FAILED in steps(engine, 4)
    # 3. They go, the one that has pages of the failed one last.
    engine.remove(one.key)
    engine.remove(sent.key if exported else other.key)
    # 4. Whoever comes then gets the right answer.
    assert answer(engine, "after") == right
    engine.check()
