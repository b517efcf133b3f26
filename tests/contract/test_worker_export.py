"""A running job stops where it stands, and goes on at another worker with its pages: over every link, pages real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from test_worker_pair import Pair, Side, locally, paired
from worker_harness import BLOCK_BYTES, Gate, attached, fake_engine, job, only, served

from headrace.core.errors import InvalidRequest, TransferFailed
from headrace.core.jobs import Abort, Activate, Drain, Freeze, Job, JobKey, JobKind, Outcome

LINKS = pytest.mark.parametrize("link", ["loopback", "tcp", "ucx", "nccl"])
OVER_TCP = pytest.mark.parametrize("link", ["tcp"])
ASKED = job("a", prompt=150, max_tokens=60)


def old_of(pair: Pair) -> Side:
    return pair.prefill


def new_of(pair: Pair) -> Side:
    return pair.decode


@asynccontextmanager
async def amid(link: str, tokens: int = 5) -> AsyncIterator[tuple[Pair, Gate]]:
    """ASKED runs on the old worker alone, which is held once it has told some of its tokens."""
    gate = Gate()
    async with paired(link, fake_engine(blocks=128, max_jobs=16, before_step=gate)) as pair:
        router = old_of(pair).router
        gate.shut_after(3 + tokens)  # 64 tokens of the prompt in a batch
        router.submit(ASKED)
        await gate.reached()
        try:
            yield pair, gate
        finally:
            gate.open()


async def frozen(pair: Pair, gate: Gate) -> list[int]:
    """Freeze it: the tokens told so far. All of them but the last have KV."""
    router = old_of(pair).router
    router.say(Freeze(ASKED.key))
    gate.open()
    await router.until(lambda heard: ASKED.key in heard.frozen)
    told = router.heard.tokens[ASKED.key]
    assert router.heard.frozen[ASKED.key] == len(ASKED.tokens) + len(told) - 1
    return told


async def taken(pair: Pair, told: list[int], attempt: int = 2) -> tuple[JobKey, Job]:
    """The new worker's grant: its job's key, and the export that its ticket is for."""
    peer = old_of(pair).here.worker.announce("127.0.0.1:1").ref
    moving = replace(ASKED, key=JobKey("a", attempt), tokens=(*ASKED.tokens, *told[:-1]))
    key = new_of(pair).router.submit(replace(moving, kind=JobKind.DECODE, peer=peer))
    ticket = await new_of(pair).router.grant(key)
    return key, replace(moving, kind=JobKind.EXPORT, ticket=ticket)


@LINKS
async def test_an_answer_goes_on_elsewhere_with_its_pages(link: str) -> None:
    alone = await locally(ASKED)
    async with amid(link) as (pair, gate):
        told = await frozen(pair, gate)
        key, export = await taken(pair, told)
        new_of(pair).router.say(Activate(key, told[-1]))
        old_of(pair).router.submit(export)
        only(await old_of(pair).router.ended(key), Outcome.HANDED_OVER)
        old_of(pair).router.say(Abort(ASKED.key))
        only(await new_of(pair).router.ended(key), Outcome.LENGTH)
        assert told + new_of(pair).router.heard.tokens[key] == alone
        assert new_of(pair).bytes_moved("received") == -(-len(export.tokens) // 16) * BLOCK_BYTES
        await pair.quiet()


@OVER_TCP
async def test_the_job_may_end_as_soon_as_its_export_has_begun(link: str) -> None:
    alone = await locally(ASKED)
    async with amid(link) as (pair, gate):
        told = await frozen(pair, gate)
        key, export = await taken(pair, told)
        old_of(pair).router.submit(export)
        old_of(pair).router.say(Abort(ASKED.key))
        only(await old_of(pair).router.ended(key), Outcome.HANDED_OVER)
        new_of(pair).router.say(Activate(key, told[-1]))
        only(await new_of(pair).router.ended(key), Outcome.LENGTH)
        assert told + new_of(pair).router.heard.tokens[key] == alone
        await pair.quiet()


@OVER_TCP
async def test_a_draining_worker_takes_exports_and_nothing_else(link: str) -> None:
    async with amid(link) as (pair, gate):
        old = old_of(pair)
        told = await frozen(pair, gate)
        retiring = asyncio.create_task(old.here.worker.retire(20.0))
        await old.router.until(lambda heard: heard.draining)
        late = old.router.submit(job("late"))
        await old.router.until(lambda heard: late in heard.busy)
        key, export = await taken(pair, told)
        old.router.submit(export)
        only(await old.router.ended(key), Outcome.HANDED_OVER)
        assert not retiring.done()
        old.router.say(Abort(ASKED.key))
        # With its last job gone it is done, long before its time is up.
        async with asyncio.timeout(10):
            await retiring
        new_of(pair).router.say(Abort(key))
        await pair.quiet()


@OVER_TCP
async def test_a_router_that_gives_up_amid_an_export_gets_every_page_back(link: str) -> None:
    async with amid(link) as (pair, gate):
        told = await frozen(pair, gate)
        key, export = await taken(pair, told)
        old_of(pair).router.submit(export)
        for side in (old_of(pair), new_of(pair)):
            side.router.say(Abort(key))
            await side.router.ended(key)
        assert not old_of(pair).router.heard.endings[ASKED.key]
        # It still stands there, and can go on by another attempt.
        key, export = await taken(pair, told, attempt=3)
        old_of(pair).router.submit(export)
        only(await old_of(pair).router.ended(key), Outcome.HANDED_OVER)
        new_of(pair).router.say(Abort(key))
        old_of(pair).router.say(Abort(ASKED.key))
        await pair.quiet()


@OVER_TCP
async def test_a_newer_export_takes_the_place_of_an_older_one(link: str) -> None:
    async with amid(link) as (pair, gate):
        told = await frozen(pair, gate)
        older, export = await taken(pair, told)
        old_of(pair).router.submit(export)
        new_of(pair).router.say(Abort(older))
        key, export = await taken(pair, told, attempt=3)
        old_of(pair).router.submit(export)
        only(await old_of(pair).router.ended(key), Outcome.HANDED_OVER)
        assert (await old_of(pair).router.ended(older)).outcome in (
            Outcome.ABORTED,
            Outcome.HANDED_OVER,
            Outcome.FAILED,
        )
        for side, late in ((new_of(pair), key), (old_of(pair), ASKED.key)):
            side.router.say(Abort(late))
        await pair.quiet()


@OVER_TCP
async def test_what_is_not_here_is_not_exported(link: str) -> None:
    async with amid(link) as (pair, gate):
        told = await frozen(pair, gate)
        old_of(pair).router.say(Abort(ASKED.key))
        await old_of(pair).router.ended(ASKED.key)
        await old_of(pair).here.worker.drained()
        # With a token that it never had: else, where the answer fills its last block, all of it may be cached.
        key, export = await taken(pair, [*told, told[-1] + 1, 0])
        old_of(pair).router.submit(export)
        ending = await old_of(pair).router.ended(key)
        assert isinstance(ending.error, TransferFailed)
        assert f"of {len(export.tokens)} tokens are here" in ending.error.message
        # Who waits for them hears it from the old worker, whatever their router thinks of it.
        waiting = await new_of(pair).router.ended(key)
        assert isinstance(waiting.error, TransferFailed)
        assert "gave the transfer up" in waiting.error.message
        await pair.quiet()


async def test_an_export_needs_a_ticket() -> None:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        key = router.submit(job("a", JobKind.EXPORT))
        assert isinstance((await router.ended(key)).error, InvalidRequest)
        await here.quiet()


@OVER_TCP
async def test_what_writes_no_answer_yet_is_said_to_have_no_pages(link: str) -> None:
    async with paired(link) as pair:
        key, _ = await pair.begin(ASKED)
        new_of(pair).router.say(Freeze(key))
        await new_of(pair).router.until(lambda heard: key in heard.frozen)
        assert new_of(pair).router.heard.frozen[key] == 0
        new_of(pair).router.say(Abort(key))
        await pair.quiet()


async def test_freezing_what_is_over_says_nothing() -> None:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        key = router.submit(job("a", max_tokens=2))
        only(await router.ended(key), Outcome.LENGTH)
        router.say(Freeze(key))
        router.say(Freeze(JobKey("never", 1)))
        only(await router.ended(router.submit(job("b", max_tokens=2))), Outcome.LENGTH)
        assert router.heard.frozen == {}


async def test_told_to_drain_the_worker_asks_to_be_ended() -> None:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        router.say(Drain(2.5))
        router.say(Drain(7.0))
        async with asyncio.timeout(10):
            assert await asyncio.shield(here.worker.leaving) == 2.5
        assert not router.heard.draining


async def test_who_attaches_to_a_draining_worker_hears_it() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        key = router.submit(job("a"))
        await gate.reached()
        here.worker.drain()
        async with attached(here.worker, "second") as second:
            await second.until(lambda heard: heard.draining)
        gate.open()
        only(await router.ended(key), Outcome.LENGTH)


async def test_what_lost_its_pages_for_long_is_named() -> None:
    """Two answers grow until the pool holds only one of them: the other waits, and is named until it is served."""
    gate = Gate()
    async with served(fake_engine(blocks=8, max_jobs=4, before_step=gate)) as here, attached(here.worker) as router:
        gate.shut_after(40)  # by then both have grown to half of the pool, and one has given way
        one = router.submit(job("one", prompt=40, max_tokens=80))
        two = router.submit(job("two", prompt=40, max_tokens=60, salt=1))
        await gate.reached()
        waiting = asyncio.create_task(here.worker.watch(_ignore))
        await router.until(lambda heard: heard.load is not None and heard.load.crowded)
        assert router.heard.load is not None
        assert router.heard.load.crowded in (("one",), ("two",))
        waiting.cancel()
        gate.open()
        only(await router.ended(one), Outcome.LENGTH)
        only(await router.ended(two), Outcome.LENGTH)
        await router.until(lambda heard: heard.load is not None and not heard.load.crowded)
        assert here.worker.load.prefill_tokens_s > 0
        await here.quiet()


async def _ignore(ready: bool) -> None:
    """Nobody asks for readiness here."""
