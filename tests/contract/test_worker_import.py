"""Pages of one worker's prefix cache come into another's: over every link, pages real. Only what verified is found."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from test_worker_pair import Pair, Side, locally, paired, side
from worker_harness import BLOCK_BYTES, Gate, Router, Serving, attached, fake_engine, job, only, served

from headrace.chaos.damaged import damaged
from headrace.chaos.messages import Damage
from headrace.core.blocks import root_hash
from headrace.core.errors import DeadlineExceeded, InvalidRequest, TransferFailed
from headrace.core.fleet import Role, WorkerRef
from headrace.core.jobs import Abort, Activate, Job, JobKey, JobKind, Outcome
from headrace.transfer.carrier import TransferStatus
from headrace.transfer.factory import make_link
from headrace.transfer.link import FrameId, Link, LinkFactory, Receipt

LINKS = pytest.mark.parametrize("link", ["loopback", "tcp", "ucx", "nccl"])
OVER_TCP = pytest.mark.parametrize("link", ["tcp"])
ASKED = job("a", prompt=150, max_tokens=20)
PEER = WorkerRef("peer", "peer-life-1")
WHOLE = 144


def holder_of(pair: Pair) -> Side:
    return pair.prefill


def fetcher_of(pair: Pair) -> Side:
    return pair.decode


@asynccontextmanager
async def warm(link: str, *, here: int = 16, there: int = 16) -> AsyncIterator[Pair]:
    """The holder has read ASKED's prompt for somebody else. here, there: tokens of its pages and of the fetcher's."""
    async with paired(link, fake_engine(blocks=128, page=here), fake_engine(blocks=128, page=there)) as pair:
        router = holder_of(pair).router
        only(await router.ended(router.submit(replace(ASKED, key=JobKey("before", 1)))), Outcome.LENGTH)
        yield pair


def prefix(count: int = WHOLE, asked: Job = ASKED, **changes: object) -> Job:
    """The import of ASKED's first tokens, as a router makes it."""
    cut = replace(
        asked, kind=JobKind.IMPORT, tokens=asked.tokens[:count], prompt_len=count, hashes=asked.hashes[: count // 16]
    )
    return replace(cut, key=JobKey(asked.key.request, 7), **changes)  # type: ignore[arg-type]


async def begun(pair: Pair, wanted: Job) -> Job:
    """Submit an import: the export that its grant asks for."""
    peer = holder_of(pair).here.worker.announce("127.0.0.1:1").ref
    key = fetcher_of(pair).router.submit(replace(wanted, peer=peer))
    return replace(wanted, kind=JobKind.EXPORT, ticket=await fetcher_of(pair).router.grant(key))


async def fetched(pair: Pair, wanted: Job) -> None:
    export = await begun(pair, wanted)
    holder_of(pair).router.submit(export)
    for one in (fetcher_of(pair), holder_of(pair)):
        ending = await one.router.ended(wanted.key)
        only(ending, Outcome.HANDED_OVER)
        assert ending.note is not None


async def answered(pair: Pair, cached: int) -> None:
    """ASKED, on the fetcher: as it is anywhere, and nothing is left behind."""
    router = fetcher_of(pair).router
    key = router.submit(ASKED)
    only(await router.ended(key), Outcome.LENGTH)
    assert router.heard.tokens[key] == await locally(ASKED)
    assert router.heard.cached[key] == cached
    await pair.quiet()


def names(here: Serving) -> set[bytes]:
    return {name for stored, _ in here.published for name in stored}


@LINKS
async def test_a_prefix_is_fetched_and_found(link: str) -> None:
    async with warm(link) as pair:
        await fetched(pair, prefix())
        assert fetcher_of(pair).bytes_moved("received") == 9 * BLOCK_BYTES
        await eventually(lambda: names(fetcher_of(pair).here) == set(ASKED.hashes[:9]))
        await answered(pair, cached=WHOLE)


@OVER_TCP
async def test_what_is_here_is_not_fetched_again(link: str) -> None:
    async with warm(link) as pair:
        await fetched(pair, prefix(64))
        await fetched(pair, replace(prefix(), key=JobKey("a", 8)))
        assert fetcher_of(pair).router.heard.granted[JobKey("a", 8)].resident_tokens == 64
        assert fetcher_of(pair).bytes_moved("received") == 9 * BLOCK_BYTES
        await answered(pair, cached=WHOLE)


@pytest.mark.parametrize(("here", "there"), [(32, 16), (16, 48), (48, 32)])
async def test_pages_of_other_sizes_come_whole(here: int, there: int) -> None:
    async with warm("loopback", here=here, there=there) as pair:
        await fetched(pair, prefix(96, peer_block_tokens=here))
        await answered(pair, cached=96)


@OVER_TCP
async def test_the_next_job_waits_for_what_the_import_lets_go(link: str) -> None:
    """It comes before the pages: it replaces the import, computes all, and both ends are free."""
    async with warm(link) as pair:
        await begun(pair, prefix())
        await answered(pair, cached=0)
        only(await fetcher_of(pair).router.ended(prefix().key), Outcome.ABORTED)


@OVER_TCP
async def test_what_the_holder_evicted_is_not_exported(link: str) -> None:
    async with warm(link) as pair:
        router = holder_of(pair).router
        # Two thirds of its pages go to others: what was read before the last one is gone.
        for number in range(8):
            only(await router.ended(router.submit(job(f"r{number}", prompt=290, salt=number + 3))), Outcome.LENGTH)
        export = await begun(pair, prefix())
        router.submit(export)
        error = (await router.ended(export.key)).error
        assert isinstance(error, TransferFailed)
        assert "of 144 tokens are here to be exported" in error.message
        await answered(pair, cached=0)


@OVER_TCP
@pytest.mark.parametrize("change", ["tokens", "tenant"])
async def test_pages_of_another_prompt_are_none(link: str, change: str) -> None:
    """Of other tokens they are refused by the receiver; another tenant's are not found in the first place."""
    async with warm(link) as pair:
        export = await begun(pair, prefix())
        if change == "tenant":
            export = replace(export, root=root_hash(b"m", tenant_salt=b"other"))
            side = holder_of(pair)
        else:
            other = holder_of(pair).router.submit(job("other", prompt=150, salt=4))
            only(await holder_of(pair).router.ended(other), Outcome.LENGTH)
            export = replace(export, tokens=job("other", prompt=150, salt=4).tokens[:WHOLE])
            side = fetcher_of(pair)
        holder_of(pair).router.submit(export)
        assert isinstance((await side.router.ended(export.key)).error, TransferFailed)
        for one in (holder_of(pair), fetcher_of(pair)):
            one.router.say(Abort(export.key))
        await pair.quiet()
        assert names(fetcher_of(pair).here) == set()
        await answered(pair, cached=0)


class Damaging:
    """A link whose second unit arrives damaged."""

    def __init__(self, link: Link, kind: Damage) -> None:
        self._kind = kind
        self.address = link.address
        self.post, self.progress, self.close = link.post, link.progress, link.close
        self._send = link.send

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        return self._send(address, frame, damaged(self._kind, buffer) if frame.unit == 1 else buffer)


@pytest.mark.parametrize(
    "kind", [Damage.CORRUPTED, Damage.CORRUPTED_HEADER, Damage.TRUNCATED], ids=lambda kind: kind.value
)
async def test_a_damaged_frame_is_computed_instead(kind: Damage) -> None:
    """With all that came after it. What had verified before is used."""
    factory = make_link("tcp")
    harmful = LinkFactory("tcp", lambda: Damaging(factory.open(), kind))
    async with (
        side("holder", Role.LOCAL, harmful, fake_engine(blocks=128)) as one,
        side("fetcher", Role.LOCAL, factory, fake_engine(blocks=128)) as two,
    ):
        pair = Pair(one, two)
        only(await one.router.ended(one.router.submit(replace(ASKED, key=JobKey("before", 1)))), Outcome.LENGTH)
        export = await begun(pair, prefix())
        one.router.submit(export)
        error = (await two.router.ended(export.key)).error
        assert isinstance(error, TransferFailed)
        assert "did not verify" in error.message
        one.router.say(Abort(export.key))
        await answered(pair, cached=64)


@OVER_TCP
@pytest.mark.parametrize("first", ["holder", "fetcher"])
async def test_a_router_that_gives_up_gets_every_page_back(link: str, first: str) -> None:
    async with warm(link) as pair:
        export = await begun(pair, prefix())
        holder_of(pair).router.submit(export)
        sides = [holder_of(pair), fetcher_of(pair)]
        for one in sides if first == "holder" else reversed(sides):
            one.router.say(Abort(export.key))
        for one in sides:
            await one.router.ended(export.key)
        await pair.quiet()
        router = fetcher_of(pair).router
        key = router.submit(ASKED)
        only(await router.ended(key), Outcome.LENGTH)
        assert router.heard.tokens[key] == await locally(ASKED)


@OVER_TCP
async def test_a_holder_that_stops_amid_a_pull(link: str) -> None:
    async with warm(link) as pair:
        export = await begun(pair, prefix())
        stopping = asyncio.create_task(holder_of(pair).here.worker.stop(0.0))
        holder_of(pair).router.submit(export)
        await stopping
        router = fetcher_of(pair).router
        key = router.submit(ASKED)
        only(await router.ended(key), Outcome.LENGTH)
        assert router.heard.tokens[key] == await locally(ASKED)
        await fetcher_of(pair).here.quiet()


@asynccontextmanager
async def alone(**engine: object) -> AsyncIterator[tuple[Serving, Router]]:
    """A worker whose carrier waits for the test."""
    async with served(fake_engine(**engine)) as here, attached(here.worker) as router:  # type: ignore[arg-type]
        yield here, router
        assert here.carrier is not None
        here.carrier.answers_cancel = True
        await here.quiet()


@pytest.mark.parametrize(
    ("status", "verified", "found"),
    [
        (TransferStatus.COMPLETE, 9, 9),
        (TransferStatus.FAILED, 4, 4),
        (TransferStatus.FAILED, 0, 0),
        (TransferStatus.CANCELLED, 9, 9),
    ],
)
async def test_only_what_verified_is_found(status: TransferStatus, verified: int, found: int) -> None:
    async with alone() as (here, router):
        key = router.submit(prefix(peer=PEER))
        ticket = await router.grant(key)
        router.say(Activate(key, 7))  # it writes no answer
        assert here.carrier is not None
        only(await router.ended(router.submit(job("other", salt=2))), Outcome.LENGTH)
        assert not names(here) & set(ASKED.hashes)
        here.carrier.close_transfer(ticket.transfer, status, verified)
        only(await router.ended(key), Outcome.HANDED_OVER if status is TransferStatus.COMPLETE else Outcome.FAILED)
        await here.quiet()
        assert names(here) & set(ASKED.hashes) == set(ASKED.hashes[:found])
        assert router.heard.tokens[key] == []


async def test_pages_are_kept_until_the_fence() -> None:
    async with alone() as (here, router):
        key = router.submit(prefix(peer=PEER))
        ticket = await router.grant(key)
        router.say(Abort(key))
        only(await router.ended(key), Outcome.ABORTED)
        follower = router.submit(ASKED)
        other = router.submit(job("other", salt=3))
        only(await router.ended(other), Outcome.LENGTH)
        # What follows it waits, and its pages are held.
        assert router.heard.tokens[follower] == []
        assert here.carrier is not None
        here.carrier.close_transfer(ticket.transfer, TransferStatus.CANCELLED)
        only(await router.ended(follower), Outcome.LENGTH)


async def test_an_import_has_a_deadline() -> None:
    async with alone() as (here, router):
        assert here.carrier is not None
        here.carrier.answers_cancel = True
        key = router.submit(prefix(peer=PEER, timeout_s=0.1))
        assert isinstance((await router.ended(key)).error, DeadlineExceeded)


async def test_an_import_needs_a_peer() -> None:
    async with alone() as (_, router):
        assert isinstance((await router.ended(router.submit(prefix()))).error, InvalidRequest)


async def test_without_room_it_is_not_taken() -> None:
    gate = Gate()
    async with alone(blocks=16, before_step=gate) as (here, router):
        gate.shut_after(2)
        large = router.submit(job("large", prompt=120, salt=1))
        await gate.reached()
        key = router.submit(prefix(peer=PEER))
        gate.open()
        await router.until(lambda heard: key in heard.busy)
        only(await router.ended(large), Outcome.LENGTH)
        here.worker.drain()
        late = router.submit(replace(prefix(peer=PEER), key=JobKey("late", 1)))
        await router.until(lambda heard: late in heard.busy)
