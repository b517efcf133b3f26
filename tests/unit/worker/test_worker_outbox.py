"""The outbox merges what is unread, keeps each job's order, and is bounded."""

import asyncio

import pytest

from headrace.core.errors import Overloaded
from headrace.core.fleet import Load
from headrace.core.jobs import Busy, Ending, Events, Frozen, JobKey, Outcome, TokenEvent
from headrace.core.logprobs import TokenLogprob
from headrace.worker.outbox import MAX_UNREAD, Outbox

A, B = JobKey("a", 1), JobKey("b", 1)
LOAD = Load(running=1, free_blocks=5, total_blocks=8, credits=2)


async def test_steps_merge_into_one_events_with_the_latest_load() -> None:
    outbox = Outbox("r", Load())
    outbox.reply(Busy(B, 1.0))
    for position in range(3):
        outbox.token(A, 0, position, 10 + position, 4 if position == 0 else 0)
        outbox.update(LOAD, draining=False, settled=False)
    outbox.ending(Ending(A, Outcome.STOP))
    assert await outbox.take() == (
        Busy(B, 1.0),
        Events((TokenEvent(A, 0, 0, (10, 11, 12), 4),), (Ending(A, Outcome.STOP),), LOAD),
    )


async def test_logprobs_stay_with_their_tokens() -> None:
    """1. Two jobs' steps mix. 2. The prompt's come once. 3. A later take begins anew."""
    outbox = Outbox("r", LOAD)
    one, two, three = (TokenLogprob(token, -0.5 * token, 1, ((token, -0.5 * token),)) for token in (1, 2, 3))
    outbox.token(A, 0, 5, 1, 4, logprob=one, prompt_logprobs=(three,))
    outbox.token(B, 0, 0, 9)
    outbox.token(A, 0, 6, 2, logprob=two)
    outbox.token(B, 0, 1, 9)
    assert await outbox.take() == (
        Events((TokenEvent(A, 0, 5, (1, 2), 4, (one, two), (three,)), TokenEvent(B, 0, 0, (9, 9))), (), LOAD),
    )
    outbox.token(A, 0, 7, 3, logprob=three)
    assert await outbox.take() == (Events((TokenEvent(A, 0, 7, (3,), 0, (three,)),), (), LOAD),)


async def test_a_second_take_goes_on_where_the_first_stopped() -> None:
    outbox = Outbox("r", LOAD)
    outbox.token(A, 1, 0, 10, 0)
    await outbox.take()
    outbox.token(A, 1, 1, 11, 0)
    assert await outbox.take() == (Events((TokenEvent(A, 1, 1, (11,)),), (), LOAD),)


async def test_a_job_stands_still_behind_its_last_token() -> None:
    outbox = Outbox("r", LOAD)
    outbox.frozen(Frozen(A, 12))
    outbox.token(A, 0, 0, 10, 0)
    outbox.reply(Busy(B, 1.0))
    assert await outbox.take() == (Busy(B, 1.0), Events((TokenEvent(A, 0, 0, (10,)),), (), LOAD), Frozen(A, 12))
    outbox.frozen(Frozen(B, 0))
    assert await outbox.take() == (Frozen(B, 0),)


async def test_tokens_of_an_aborted_job_are_dropped() -> None:
    outbox = Outbox("r", LOAD)
    outbox.token(A, 0, 0, 10, 0)
    outbox.forget_tokens(A)
    outbox.ending(Ending(A, Outcome.ABORTED))
    assert await outbox.take() == (Events((), (Ending(A, Outcome.ABORTED),), LOAD),)


@pytest.mark.parametrize(
    ("load", "draining", "settled", "told"),
    [
        (LOAD, False, True, False),  # nothing changed
        (Load(running=1, free_blocks=4, total_blocks=8, credits=2), False, False, False),  # a page more or less
        (Load(running=1, free_blocks=4, total_blocks=8, credits=2), False, True, True),  # but at rest it is told
        (Load(running=1, free_blocks=5, total_blocks=8, credits=1), False, False, True),
        (Load(running=2, free_blocks=5, total_blocks=8, credits=2), False, False, True),
        (LOAD, True, False, True),
    ],
)
async def test_load_alone_is_told_when_it_matters(load: Load, draining: bool, settled: bool, told: bool) -> None:
    outbox = Outbox("r", LOAD)
    outbox.update(load, draining=draining, settled=settled)
    outbox.close()
    assert await outbox.take() == ((Events((), (), load, draining),) if told else ())


async def test_take_waits_for_news() -> None:
    outbox = Outbox("r", LOAD)
    taking = asyncio.create_task(outbox.take())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not taking.done()
    outbox.token(A, 0, 0, 1, 0)
    async with asyncio.timeout(5):
        assert len(await taking) == 1


async def test_what_is_unread_survives_closing() -> None:
    outbox = Outbox("r", LOAD)
    outbox.ending(Ending(A, Outcome.LENGTH))
    outbox.close()
    outbox.close(Overloaded("Closed twice."))
    assert len(await outbox.take()) == 1
    assert await outbox.take() == ()


async def test_a_router_too_far_behind_is_cut_off() -> None:
    outbox = Outbox("r", LOAD)
    for number in range(MAX_UNREAD + 1):
        assert not outbox.closed
        outbox.reply(Busy(JobKey("x", number), 1.0))
    assert outbox.closed
    with pytest.raises(Overloaded):
        await outbox.take()
