"""A request that is submitted again while an older attempt at it is still here: the newer one takes its place."""

import asyncio
from dataclasses import replace

import pytest
from test_worker_transfer_states import EVERY_STATE, PEER, Scene, bring, one_ending, scene, ticket_for
from worker_harness import Gate, attached, fake_engine, job, only, served

from headrace.core.errors import DeadlineExceeded, InvalidRequest, TakenUp, Unavailable, WorkerLost
from headrace.core.jobs import Abort, Job, JobKey, JobKind, Outcome
from headrace.transfer.carrier import TransferStatus


def attempt_at(on: Scene, older: JobKey, kind: JobKind, number: int = 2, timeout_s: float = 60.0) -> Job:
    """Another attempt at the request of `older`, as the router would send it."""
    asked = job(older.request, kind, attempt=number, timeout_s=timeout_s, peer=PEER)
    if kind is JobKind.PREFILL:
        return replace(asked, ticket=ticket_for(on.here, asked, transfer=bytes([number]) * 16))
    return asked


async def begun(on: Scene, key: JobKey, kind: JobKind) -> None:
    if kind is JobKind.DECODE:
        await on.router.grant(key)
    else:
        await on.router.until(lambda heard: heard.tokens[key])


@EVERY_STATE
@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "not aborted"])
async def test_a_newer_attempt_takes_the_place_of_an_older_one(kind: JobKind, state: str, aborted: bool) -> None:
    async with scene() as on:
        older = await bring(on, kind, state)
        if aborted:
            on.router.say(Abort(older))
        newer = on.router.submit(attempt_at(on, older, kind))
        only(await on.router.ended(older), Outcome.ABORTED)
        on.fence()
        on.gate.open()
        await begun(on, newer, kind)
        on.router.say(Abort(newer))
        only(await one_ending(on, newer), Outcome.ABORTED)
        assert len(on.router.heard.endings[older]) == 1
        assert newer not in on.router.heard.busy


@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "not aborted"])
@pytest.mark.parametrize("verified", [0, 2])
async def test_it_begins_at_the_fence_and_finds_what_was_verified(aborted: bool, verified: int) -> None:
    async with scene() as on:
        older = await on.decode("receiving")
        transfer = on.router.heard.granted[older].ticket.transfer
        if aborted:
            on.router.say(Abort(older))
        newer = on.router.submit(attempt_at(on, older, JobKind.DECODE))
        only(await on.router.ended(older), Outcome.ABORTED)
        # A whole other job comes and goes while the older attempt's pages are still in doubt.
        other = on.router.submit(job("other", salt=3))
        only(await on.router.ended(other), Outcome.LENGTH)
        assert newer not in on.router.heard.granted
        assert list(on.carrier.received) == [transfer]
        on.carrier.close_transfer(transfer, TransferStatus.CANCELLED, verified)
        ticket = await on.router.grant(newer)
        assert on.router.heard.granted[newer].resident_tokens == 16 * verified
        assert (ticket.first_block, ticket.block_count) == (verified, 3 - verified)
        on.router.say(Abort(newer))


async def test_the_two_never_hold_pages_at_once() -> None:
    async with served(fake_engine(blocks=8)) as here, attached(here.worker) as router:
        assert here.carrier is not None
        here.carrier.answers_cancel = True
        for number in range(1, 4):  # seven of the eight blocks, each time
            key = router.submit(job("d", JobKind.DECODE, prompt=100, attempt=number, peer=PEER))
            await router.grant(key)
        assert not router.heard.busy
        router.say(Abort(key))
        await here.quiet()


@pytest.mark.parametrize("attempt", [1, 2], ids=["same attempt", "another attempt"])
@pytest.mark.parametrize("name", ["one", "two"], ids=["same router again", "another router"])
async def test_what_comes_last_counts_whoever_says_it(attempt: int, name: str) -> None:
    """A router that is attached anew, or another one, while the older stream has not broken yet."""
    gate = Gate()
    async with (
        served(fake_engine(before_step=gate)) as here,
        attached(here.worker, "one") as first,
        attached(here.worker, name) as second,
    ):
        gate.shut()
        older = first.submit(job("a"))
        await gate.reached()
        newer = second.submit(job("a", attempt=attempt))
        ending = await first.ended(older)
        if name == "one":
            only(ending, Outcome.ABORTED)
        else:
            # Not an error that a router meets with another attempt: the two would end each other for ever.
            assert isinstance(ending.error, TakenUp)
            assert "Another router" in ending.error.message
        gate.open()
        only(await second.ended(newer), Outcome.LENGTH)
        await here.quiet()
        assert len(second.heard.tokens[newer]) == 8
        assert len(first.heard.endings[older]) == len(second.heard.endings[newer]) == 1
        assert not first.heard.tokens[older]


async def wait_behind(on: Scene, timeout_s: float = 60.0) -> tuple[JobKey, JobKey]:
    """An attempt whose transfer is not fenced, and one that waits for it."""
    older = await on.decode("receiving")
    newer = on.router.submit(attempt_at(on, older, JobKind.DECODE, timeout_s=timeout_s))
    only(await on.router.ended(older), Outcome.ABORTED)
    return older, newer


NOTHING = type(None)
ENDS_WITH = {
    "abort": NOTHING,
    "superseded": NOTHING,
    "deadline": DeadlineExceeded,
    "without a peer": InvalidRequest,
}


@pytest.mark.parametrize("how", ENDS_WITH)
async def test_one_that_waits_ends_once_and_at_once(how: str) -> None:
    async with scene() as on:
        older, newer = await wait_behind(on, 0.05 if how == "deadline" else 60.0)
        match how:
            case "abort":
                on.router.say(Abort(newer))
            case "superseded":
                on.router.submit(attempt_at(on, older, JobKind.DECODE, 3))
            case "without a peer":
                newer = on.router.submit(job(older.request, JobKind.DECODE, attempt=3))
        ending = await on.router.ended(newer)  # while the older one still waits for its fence
        assert type(ending.error) is ENDS_WITH[how]
        on.fence()
        if how == "superseded":
            last = JobKey(older.request, 3)
            await on.router.grant(last)
            on.router.say(Abort(last))
        await one_ending(on, newer)
        assert newer not in on.router.heard.granted


async def test_one_that_waits_goes_with_its_stream() -> None:
    async with scene() as on:
        async with attached(on.here.worker, "two") as two:
            older = await on.decode("receiving")
            two.submit(attempt_at(on, older, JobKind.DECODE))
            await on.router.ended(older)
        on.fence()
        await on.here.quiet()
        assert len(on.carrier.received) == 1


async def test_one_that_waits_is_told_that_the_worker_stops() -> None:
    async with scene() as on:
        _, newer = await wait_behind(on)
        stopping = asyncio.create_task(on.here.worker.stop(0.0))
        assert isinstance((await on.router.ended(newer)).error, Unavailable)
        on.fence()
        await stopping
        assert len(on.carrier.received) == 1


async def test_one_that_waits_ends_with_the_engine() -> None:
    broken = False

    def before_step() -> None:
        if broken:
            raise RuntimeError("the device is gone")

    engine = fake_engine(before_step=before_step)
    async with served(engine) as here, attached(here.worker) as router:
        assert here.carrier is not None
        older = router.submit(job("d", JobKind.DECODE, peer=PEER))
        await router.grant(older)
        newer = router.submit(job("d", JobKind.DECODE, attempt=2, peer=PEER))
        only(await router.ended(older), Outcome.ABORTED)
        broken = True
        trigger = router.submit(job("x", salt=1))
        for key in (newer, trigger):
            assert isinstance((await router.ended(key)).error, WorkerLost)
        here.carrier.close_transfer(here.carrier.cancelled[0], TransferStatus.CANCELLED)
        await here.worker.drained()
        for key in (older, trigger):
            engine.remove(key)  # the thread is gone; what it held goes with the process


async def test_a_worker_that_takes_nothing_ends_nothing_for_it() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        older = router.submit(job("a"))
        await gate.reached()
        here.worker.drain()
        newer = router.submit(job("a", attempt=2))
        await router.until(lambda heard: newer in heard.busy)
        gate.open()
        only(await router.ended(older), Outcome.LENGTH)
        await here.quiet()
