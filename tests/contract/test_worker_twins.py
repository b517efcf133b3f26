"""Jobs of one key from two streams: each holds what it has until it lets go itself, and ends once."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from test_worker_transfer_states import ticket_for
from worker_harness import Gate, Router, Serving, WaitingCarrier, attached, fake_engine, job, only, served

from headrace.core.errors import TakenUp
from headrace.core.jobs import Abort, Freeze, Job, JobKey, JobKind, Outcome
from headrace.transfer.carrier import TransferStatus

ASKED = job("a", max_tokens=60)
EXPORT = JobKey("a", 2)


def export_of(here: Serving, transfer: bytes, key: JobKey = EXPORT) -> Job:
    """An export of the prompt of ASKED."""
    asked = replace(ASKED, key=key, kind=JobKind.EXPORT)
    return replace(asked, ticket=ticket_for(here, asked, transfer=transfer * 16))


async def standing(router: Router, gate: Gate, asked: Job) -> JobKey:
    """Run a job, and stop it where it stands."""
    gate.shut_after(3)
    key = router.submit(asked)
    await gate.reached()
    router.say(Freeze(key))
    gate.open()
    await router.until(lambda heard: key in heard.frozen)
    return key


async def sending(here: Serving, transfer: bytes) -> None:
    """Until an export's transfer has begun, which no router hears."""
    await eventually(lambda: transfer * 16 in carrier_of(here).sent)


def carrier_of(here: Serving) -> WaitingCarrier:
    assert here.carrier is not None
    return here.carrier


@pytest.mark.parametrize("newer", [1, 2])
async def test_an_export_begins_when_one_of_its_key_has_let_go(newer: int) -> None:
    """newer: how many come, each by a stream of its own, while the first one's transfer is not fenced."""
    gate = Gate()
    async with AsyncExitStack() as closing:
        here = await closing.enter_async_context(served(fake_engine(before_step=gate)))
        first, *others = [
            await closing.enter_async_context(attached(here.worker, f"router {number}")) for number in range(newer + 1)
        ]
        carrier = carrier_of(here)
        key = await standing(first, gate, ASKED)
        first.submit(export_of(here, b"0"))
        await sending(here, b"0")
        # 1. Each newer one ends the one before, and waits for the first one's fence.
        superseded = first
        for number, router in enumerate(others, 1):
            router.submit(export_of(here, str(number).encode()))
            assert isinstance((await superseded.ended(EXPORT)).error, TakenUp)
            superseded = router
        assert list(carrier.sent) == [b"0" * 16]
        # 2. The last one begins behind it. The job whose pages they are stands where it stood, through all that.
        last = str(newer).encode()
        carrier.close_transfer(b"0" * 16, TransferStatus.CANCELLED)
        await sending(here, last)
        assert list(carrier.sent) == [b"0" * 16, last * 16]
        carrier.close_transfer(last * 16, TransferStatus.COMPLETE, 3)
        only(await others[-1].ended(EXPORT), Outcome.HANDED_OVER)
        assert not first.heard.endings[key]
        first.say(Abort(key))
        only(await first.ended(key), Outcome.ABORTED)
        await here.quiet()
        assert [len(router.heard.endings[EXPORT]) for router in (first, *others)] == [1] * (newer + 1)


@pytest.mark.parametrize("earlier", [JobKind.LOCAL, JobKind.EXPORT])
async def test_an_export_and_a_job_of_one_key_are_never_here_together(earlier: JobKind) -> None:
    gate = Gate()
    async with (
        served(fake_engine(before_step=gate)) as here,
        attached(here.worker, "one") as one,
        attached(here.worker, "two") as two,
    ):
        source = await standing(one, gate, replace(ASKED, key=JobKey("source", 1)))
        if earlier is JobKind.EXPORT:
            one.submit(export_of(here, b"1", ASKED.key))
            await sending(here, b"1")
            two.submit(ASKED)
        else:
            gate.shut()
            one.submit(ASKED)
            two.submit(export_of(here, b"1", ASKED.key))
        await two.until(lambda heard: heard.busy)
        # What was here first goes on as if nothing had been asked.
        gate.open()
        if earlier is JobKind.EXPORT:
            carrier_of(here).close_transfer(b"1" * 16, TransferStatus.COMPLETE, 3)
            only(await one.ended(ASKED.key), Outcome.HANDED_OVER)
        else:
            only(await one.ended(ASKED.key), Outcome.LENGTH)
            assert len(one.heard.tokens[ASKED.key]) == ASKED.sampling.max_tokens
        one.say(Abort(source))
        await one.ended(source)
        await here.quiet()
        assert not two.heard.endings[ASKED.key]
