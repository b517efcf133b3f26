"""Every state of a job that has a transfer, ended in every way, with a carrier whose reports the test makes.

Whatever happens: one ending, pages kept until the fence, then all of them free and the pool recounted.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from worker_harness import Gate, Router, Serving, WaitingCarrier, attached, fake_engine, job, only, served

from headrace.core.errors import DeadlineExceeded, InvalidRequest, TransferFailed, Unavailable, WorkerLost
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Abort, Activate, Ending, Job, JobKey, JobKind, Outcome
from headrace.core.ticket import UNIT_BLOCKS, Ticket
from headrace.transfer.carrier import TransferStatus

PEER = WorkerRef("peer", "peer-life-1")
HERE = WorkerRef("worker", "worker-life-1")
DECODE_STATES = ("adding", "receiving", "activated", "verified")
PREFILL_STATES = ("adding", "running", "sending")


def ticket_for(here: Serving, sent: Job, **changes: object) -> Ticket:
    info = here.engine.info
    ticket = Ticket(
        transfer=b"t" * 16,
        secret=b"s" * 16,
        job=sent.key.request,
        attempt=sent.key.attempt,
        source=HERE,
        target=PEER,
        model_digest=info.model_digest,
        layout=info.layout,
        first_block=0,
        block_count=-(-len(sent.tokens) // 16),
        unit_blocks=UNIT_BLOCKS,
        link="waiting",
        address="waiting:2",
    )
    return replace(ticket, **changes)  # type: ignore[arg-type]


class Scene:
    """One worker, one router, one job brought to one state."""

    def __init__(self, here: Serving, router: Router, gate: Gate) -> None:
        assert here.carrier is not None
        self.here, self.router, self.gate = here, router, gate
        self.carrier: WaitingCarrier = here.carrier

    async def decode(self, state: str, timeout_s: float = 60.0) -> JobKey:
        if state == "adding":
            await self._hold_engine()
        key = self.router.submit(job("d", JobKind.DECODE, peer=PEER, timeout_s=timeout_s))
        if state != "adding":
            ticket = await self.router.grant(key)
            if state == "activated":
                self.router.say(Activate(key, 7))
            if state == "verified":
                self.carrier.close_transfer(ticket.transfer, TransferStatus.COMPLETE, ticket.block_count)
        return key

    async def prefill(self, state: str, timeout_s: float = 60.0) -> JobKey:
        if state == "adding":
            await self._hold_engine()
        elif state == "running":
            self.gate.shut()
        sent = job("p", JobKind.PREFILL, timeout_s=timeout_s)
        key = self.router.submit(replace(sent, ticket=ticket_for(self.here, sent)))
        if state == "running":
            await self.gate.reached()
        elif state == "sending":
            await self.router.until(lambda heard: heard.tokens[key])
        return key

    async def _hold_engine(self) -> None:
        self.gate.shut()
        self.router.submit(job("other", salt=5))
        await self.gate.reached()

    def fence(self) -> None:
        """The carrier reports every transfer that is still open."""
        for legs in (self.carrier.received, self.carrier.sent):
            for transfer, leg in legs.items():
                if not leg.done:
                    self.carrier.close_transfer(transfer, TransferStatus.CANCELLED)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        made = Scene(here, router, gate)
        yield made
        made.gate.open()
        made.carrier.answers_cancel = True
        made.fence()
        await here.quiet()


STATES = [(JobKind.DECODE, state) for state in DECODE_STATES] + [(JobKind.PREFILL, state) for state in PREFILL_STATES]
EVERY_STATE = pytest.mark.parametrize(("kind", "state"), STATES, ids=lambda value: getattr(value, "value", value))


async def bring(on: Scene, kind: JobKind, state: str, timeout_s: float = 60.0) -> JobKey:
    return await (on.decode if kind is JobKind.DECODE else on.prefill)(state, timeout_s)


async def one_ending(on: Scene, key: JobKey) -> Ending:
    """The ending, and that nothing follows it once everything is quiet."""
    ending = await on.router.ended(key)
    on.gate.open()
    on.carrier.answers_cancel = True
    on.fence()
    await on.here.quiet()
    assert on.router.heard.endings[key] == [ending]
    return ending


@EVERY_STATE
async def test_abort(kind: JobKind, state: str) -> None:
    async with scene() as on:
        key = await bring(on, kind, state)
        on.router.say(Abort(key))
        on.router.say(Abort(key))
        on.router.say(Activate(key, 7))  # late
        only(await one_ending(on, key), Outcome.ABORTED)


@EVERY_STATE
async def test_deadline(kind: JobKind, state: str) -> None:
    async with scene() as on:
        key = await bring(on, kind, state, timeout_s=0.1)
        ending = await one_ending(on, key)
        assert isinstance(ending.error, DeadlineExceeded)


@EVERY_STATE
async def test_broken_stream(kind: JobKind, state: str) -> None:
    async with scene() as on:
        key = await bring(on, kind, state)
        on.router.hang_up()
        on.gate.open()
        async with attached(on.here.worker, "observer"):
            on.carrier.answers_cancel = True
            on.fence()
            await on.here.quiet()
        counted = f'headrace_jobs_total{{kind="{kind.value}",outcome="aborted"}} 1.0'
        assert counted in await on.here.worker.metrics()
        assert not [ending for ending in on.router.heard.endings[key] if ending.outcome is not Outcome.ABORTED]


@EVERY_STATE
async def test_stop(kind: JobKind, state: str) -> None:
    async with scene() as on:
        key = await bring(on, kind, state)
        on.carrier.answers_cancel = True
        stopping = asyncio.create_task(on.here.worker.stop(0.0))
        ending = await on.router.ended(key)
        assert isinstance(ending.error, Unavailable)
        on.gate.open()
        await stopping
        assert on.carrier.closed
        assert on.router.heard.endings[key] == [ending]


@pytest.mark.parametrize("kind", [JobKind.DECODE, JobKind.PREFILL], ids=lambda kind: kind.value)
async def test_pages_are_kept_until_the_fence(kind: JobKind) -> None:
    async with scene() as on:
        key = await bring(on, kind, "receiving" if kind is JobKind.DECODE else "sending")
        on.router.say(Abort(key))
        only(await on.router.ended(key), Outcome.ABORTED)
        # A whole other job comes and goes while the aborted one waits for its carrier.
        other = on.router.submit(job("other", salt=3))
        only(await on.router.ended(other), Outcome.LENGTH)
        await on.router.until(lambda heard: heard.load is not None and heard.load.running == 1)
        assert on.router.heard.load is not None
        assert on.router.heard.load.free_blocks == 64 - 3
        assert len(on.carrier.cancelled) == 1
        # The same key cannot begin again before it is gone.
        again = on.router.submit(job(key.request, kind, peer=PEER))
        await on.router.until(lambda heard: again in heard.busy)
        on.fence()
        await on.here.quiet()


@pytest.mark.parametrize("verified", [0, 2])
async def test_failed_transfer_ends_a_decode_job_and_keeps_what_was_verified(verified: int) -> None:
    async with scene() as on:
        key = await on.decode("activated")
        transfer = on.router.heard.granted[key].ticket.transfer
        on.carrier.close_transfer(transfer, TransferStatus.FAILED, verified)
        assert isinstance((await one_ending(on, key)).error, TransferFailed)
        # A second attempt asks for the rest only.
        second = on.router.submit(job("d", JobKind.DECODE, peer=PEER, attempt=2))
        ticket = await on.router.grant(second)
        assert on.router.heard.granted[second].resident_tokens == 16 * verified
        assert (ticket.first_block, ticket.block_count) == (verified, 3 - verified)
        assert ticket.transfer != transfer
        assert ticket.transfer[:8] == transfer[:8]
        on.router.say(Abort(second))


async def test_failed_transfer_ends_a_prefill_job() -> None:
    async with scene() as on:
        key = await on.prefill("sending")
        on.carrier.close_transfer(b"t" * 16, TransferStatus.FAILED)
        assert isinstance((await one_ending(on, key)).error, TransferFailed)


async def test_first_token_that_ends_the_request_ends_it_at_prefill() -> None:
    async with scene() as on:
        sent = job("p", JobKind.PREFILL, max_tokens=1)
        key = on.router.submit(replace(sent, ticket=ticket_for(on.here, sent)))
        only(await one_ending(on, key), Outcome.LENGTH)
        assert on.carrier.cancelled == [b"t" * 16]
        assert len(on.router.heard.tokens[key]) == 1


async def test_first_token_does_not_wait_for_the_transfer_but_the_ending_does() -> None:
    async with scene() as on:
        key = await on.prefill("sending")
        assert not on.router.heard.endings[key]
        assert len(on.carrier.sent[b"t" * 16].blocks) == 3
        on.carrier.close_transfer(b"t" * 16, TransferStatus.COMPLETE, 3)
        only(await one_ending(on, key), Outcome.HANDED_OVER)


async def test_blocks_leave_while_prefill_goes_on() -> None:
    gate = Gate()
    async with served(fake_engine(batched_tokens=24, before_step=gate)) as here, attached(here.worker) as router:
        assert here.carrier is not None
        sent = job("p", JobKind.PREFILL, prompt=60)
        ticket = ticket_for(here, sent, first_block=1, block_count=3)
        gate.shut_after(2)  # 48 of 60 tokens are computed, blocks 1 and 2 of 4 are whole beside block 0
        key = router.submit(replace(sent, ticket=ticket))
        await gate.reached()
        assert not router.heard.tokens[key]
        assert len(here.carrier.sent[ticket.transfer].blocks) == 2
        gate.open()
        await router.until(lambda heard: heard.tokens[key])
        assert len(here.carrier.sent[ticket.transfer].blocks) == 3
        here.carrier.close_transfer(ticket.transfer, TransferStatus.COMPLETE, 3)
        only(await router.ended(key), Outcome.HANDED_OVER)
        await here.quiet()


@pytest.mark.parametrize(
    "changes",
    [
        {"source": PEER},
        {"job": "another"},
        {"attempt": 2},
        {"model_digest": b"other"},
        {"link": "tcp"},
        {"block_count": 2},
        {"first_block": 3, "block_count": 0},
        {"unit_blocks": 0},
    ],
    ids=str,
)
async def test_tickets_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    async with scene() as on:
        sent = job("p", JobKind.PREFILL)
        key = on.router.submit(replace(sent, ticket=ticket_for(on.here, sent, **changes)))
        assert isinstance((await one_ending(on, key)).error, InvalidRequest)
        assert not on.carrier.sent


async def test_legs_without_their_other_end_are_refused() -> None:
    async with scene() as on:
        for kind in (JobKind.PREFILL, JobKind.DECODE):
            key = on.router.submit(job(kind.value, kind))
            assert isinstance((await one_ending(on, key)).error, InvalidRequest)


async def test_decode_refused_for_pages_is_busy() -> None:
    async with served(fake_engine(blocks=8)) as here, attached(here.worker) as router:
        assert here.carrier is not None
        here.carrier.answers_cancel = True
        held = router.submit(job("held", JobKind.DECODE, prompt=100, peer=PEER))
        await router.grant(held)
        refused = router.submit(job("refused", JobKind.DECODE, prompt=40, salt=1, peer=PEER))
        await router.until(lambda heard: refused in heard.busy)
        router.say(Abort(held))
        await here.quiet()
        assert not router.heard.endings[refused]


async def test_dead_engine_with_transfers_open() -> None:
    broken = False

    def before_step() -> None:
        if broken:
            raise RuntimeError("the device is gone")

    engine = fake_engine(before_step=before_step)
    async with served(engine) as here, attached(here.worker) as router:
        assert here.carrier is not None
        decode = router.submit(job("d", JobKind.DECODE, peer=PEER))
        await router.grant(decode)
        broken = True
        trigger = router.submit(job("x", salt=1))
        for key in (decode, trigger):
            assert isinstance((await router.ended(key)).error, WorkerLost)
        here.carrier.close_transfer(here.carrier.cancelled[0], TransferStatus.CANCELLED)
        await here.worker.drained()
        for key in (decode, trigger):
            engine.remove(key)  # the thread is gone; what it held goes with the process
