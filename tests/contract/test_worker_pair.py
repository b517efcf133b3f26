"""Two workers in one process, pages really moving between them: disaggregated answers equal local ones."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from fixtures.eventually import eventually
from worker_harness import BLOCK_BYTES, Gate, Router, Serving, attached, fake_engine, job, only, served

from headrace.core.errors import TransferFailed, Unavailable
from headrace.core.fleet import Role
from headrace.core.jobs import Abort, Activate, Job, JobKey, JobKind, Outcome
from headrace.core.pages import PagePort
from headrace.engine.engine import Engine
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import TransferReport
from headrace.transfer.factory import make_link
from headrace.transfer.link import LinkFactory
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.thread import TransferThread

pytestmark = pytest.mark.parametrize("link", ["loopback", "tcp", "ucx", "nccl"])
QUICK = TransferOptions(drain_s=1.0, linger_s=1.0)


@dataclass(frozen=True, slots=True)
class Side:
    """A worker and this test's attachment to it."""

    here: Serving
    router: Router

    def bytes_moved(self, direction: str) -> float:
        sample = self.here.metrics.registry.get_sample_value(
            "headrace_kv_transfer_bytes_total", {"direction": direction}
        )
        assert sample is not None
        return sample


@dataclass(frozen=True, slots=True)
class Pair:
    prefill: Side
    decode: Side

    async def begin(self, asked: Job) -> tuple[JobKey, Job]:
        """Submit the decode leg; the prefill leg that its grant asks for."""
        peer = self.prefill.here.worker.announce("127.0.0.1:1").ref
        key = self.decode.router.submit(replace(asked, kind=JobKind.DECODE, peer=peer))
        ticket = await self.decode.router.grant(key)
        return key, replace(asked, kind=JobKind.PREFILL, ticket=ticket)

    async def generate(self, asked: Job) -> list[int]:
        """What a conductor does for one request, and the answer."""
        return await self.finish(*await self.begin(asked))

    async def finish(self, key: JobKey, prefill: Job) -> list[int]:
        """The answer to a request whose decode leg was granted."""
        self.prefill.router.submit(prefill)
        first = await self.first_token(key)
        self.decode.router.say(Activate(key, first))
        only(await self.prefill.router.ended(key), Outcome.HANDED_OVER)
        only(await self.decode.router.ended(key), Outcome.LENGTH)
        return [first, *self.decode.router.heard.tokens[key]]

    async def first_token(self, key: JobKey) -> int:
        await self.prefill.router.until(lambda heard: heard.tokens[key] or heard.endings[key])
        return self.prefill.router.heard.tokens[key][0]

    async def quiet(self) -> None:
        await self.prefill.here.quiet()
        await self.decode.here.quiet()


def carrier(factory: LinkFactory, metrics: WorkerMetrics) -> Callable[..., TransferThread]:
    def make(pages: PagePort, report: Callable[[TransferReport], None]) -> TransferThread:
        return TransferThread(factory, pages, report, metrics.transfer, QUICK)

    return make


@asynccontextmanager
async def side(name: str, role: Role, link: LinkFactory, engine: Engine) -> AsyncIterator[Side]:
    metrics = WorkerMetrics()
    async with (
        served(
            engine, name=name, role=role, link=link.name, make_carrier=carrier(link, metrics), metrics=metrics
        ) as here,
        attached(here.worker) as router,
    ):
        yield Side(here, router)


@asynccontextmanager
async def paired(link: str, prefill: Engine | None = None, decode: Engine | None = None) -> AsyncIterator[Pair]:
    factory = make_link(link, switchboard=Switchboard())
    async with (
        side("prefill", Role.PREFILL, factory, prefill or fake_engine(blocks=128, max_jobs=16)) as one,
        side("decode", Role.DECODE, factory, decode or fake_engine(blocks=128, max_jobs=16)) as two,
    ):
        yield Pair(one, two)


async def locally(asked: Job) -> list[int]:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        key = router.submit(asked)
        only(await router.ended(key), Outcome.LENGTH)
        return router.heard.tokens[key]


@pytest.mark.parametrize("prompt", [1, 16, 17, 64, 150, 300])
async def test_disaggregated_equals_local(link: str, prompt: int) -> None:
    asked = job("a", prompt=prompt, max_tokens=20)
    async with paired(link) as pair:
        assert await pair.generate(asked) == await locally(asked)
        moved = -(-prompt // 16) * BLOCK_BYTES
        assert pair.prefill.bytes_moved("sent") == moved
        assert pair.decode.bytes_moved("received") == moved
        await pair.quiet()


async def test_resident_blocks_do_not_travel_again(link: str) -> None:
    asked = job("a", prompt=150, max_tokens=20)
    async with paired(link) as pair:
        answer = await pair.generate(asked)
        before = pair.decode.bytes_moved("received")
        again = replace(asked, key=JobKey("b", 1))
        assert await pair.generate(again) == answer
        assert pair.decode.router.heard.granted[again.key].resident_tokens == 144
        assert pair.prefill.router.heard.cached[again.key] == 149
        assert pair.decode.bytes_moved("received") - before == BLOCK_BYTES
        await pair.quiet()


async def test_a_second_attempt_asks_only_for_what_the_first_did_not_bring(link: str) -> None:
    gate, asked = Gate(), job("a", prompt=300, max_tokens=20)
    expected = await locally(asked)
    async with paired(link, fake_engine(blocks=128, batched_tokens=128, before_step=gate)) as pair:
        gate.shut_after(1)  # 128 of 300 tokens: two units of four blocks
        key, prefill = await pair.begin(asked)
        pair.prefill.router.submit(prefill)
        await gate.reached()
        await eventually(lambda: pair.decode.bytes_moved("received") == 8 * BLOCK_BYTES)
        # As a router does it: everything again right behind the word that the first attempt is over.
        for one in (pair.decode, pair.prefill):
            one.router.say(Abort(key))
        second = await pair.begin(replace(asked, key=JobKey("a", 2)))
        assert pair.decode.router.heard.granted[second[0]].resident_tokens == 128
        gate.open()
        assert await pair.finish(*second) == expected
        assert pair.decode.bytes_moved("received") == 19 * BLOCK_BYTES
        await pair.quiet()


@pytest.mark.parametrize("when", ["before the pages", "after the pages"])
async def test_activation_and_pages_come_in_either_order(link: str, when: str) -> None:
    asked = job("a", prompt=150, max_tokens=20)
    expected = await locally(asked)
    async with paired(link) as pair:
        key, prefill = await pair.begin(asked)
        if when == "before the pages":
            pair.decode.router.say(Activate(key, expected[0]))
        pair.prefill.router.submit(prefill)
        only(await pair.prefill.router.ended(key), Outcome.HANDED_OVER)
        if when == "after the pages":
            pair.decode.router.say(Activate(key, expected[0]))
        only(await pair.decode.router.ended(key), Outcome.LENGTH)
        assert [expected[0], *pair.decode.router.heard.tokens[key]] == expected
        await pair.quiet()


async def test_resuming_goes_on_with_the_same_tokens(link: str) -> None:
    asked = job("a", prompt=50, max_tokens=20)
    expected = await locally(asked)
    async with paired(link) as pair:
        resumed = replace(asked, key=JobKey("a", 2), tokens=asked.tokens + tuple(expected[:7]))
        assert await pair.generate(resumed) == expected[7:]
        await pair.quiet()


async def test_abort_while_decoding(link: str) -> None:
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=50, max_tokens=400))
        pair.prefill.router.submit(prefill)
        pair.decode.router.say(Activate(key, await pair.first_token(key)))
        await pair.decode.router.until(lambda heard: len(heard.tokens[key]) > 3)
        pair.decode.router.say(Abort(key))
        only(await pair.decode.router.ended(key), Outcome.ABORTED)
        await pair.quiet()
        assert len(pair.decode.router.heard.endings[key]) == 1


@pytest.mark.parametrize("first", ["prefill", "decode"])
@pytest.mark.parametrize("moment", ["granted", "submitted", "first token", "handed over", "decoding"])
async def test_a_conductor_that_gives_up_gets_every_page_back(link: str, moment: str, first: str) -> None:
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=300, max_tokens=400))
        if moment != "granted":
            pair.prefill.router.submit(prefill)
        if moment in ("first token", "decoding"):
            token = await pair.first_token(key)
            if moment == "decoding":
                pair.decode.router.say(Activate(key, token))
                await pair.decode.router.until(lambda heard: heard.tokens[key])
        elif moment == "handed over":
            await pair.prefill.router.ended(key)
        legs = [pair.prefill, pair.decode] if first == "prefill" else [pair.decode, pair.prefill]
        for leg in legs:
            leg.router.say(Abort(key))
            if moment != "granted" or leg is pair.decode:
                await leg.router.ended(key)
        await pair.quiet()
        assert all(len(leg.router.heard.endings[key]) <= 1 for leg in legs)


async def test_prefill_job_that_fails_fails_the_decode_job(link: str) -> None:
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=300, max_tokens=1))
        pair.prefill.router.submit(prefill)
        only(await pair.prefill.router.ended(key), Outcome.LENGTH)  # the first token was the last
        assert isinstance((await pair.decode.router.ended(key)).error, TransferFailed)
        await pair.quiet()


async def test_pages_of_other_tokens_are_refused(link: str) -> None:
    """Even where a router says that they are of the same job."""
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=100))
        pair.prefill.router.submit(replace(prefill, tokens=(*prefill.tokens[:50], 5, *prefill.tokens[51:])))
        error = (await pair.decode.router.ended(key)).error
        assert isinstance(error, TransferFailed)
        assert "context" in error.message
        pair.prefill.router.say(Abort(key))
        await pair.quiet()


async def test_prefill_worker_stopping_fails_the_decode_job(link: str) -> None:
    gate = Gate()
    async with paired(link, fake_engine(blocks=128, before_step=gate)) as pair:
        gate.shut_after(2)
        key, prefill = await pair.begin(job("a", prompt=300, timeout_s=20.0))
        pair.prefill.router.submit(prefill)
        await gate.reached()
        stopping = asyncio.create_task(pair.prefill.here.worker.stop(0.0))
        assert isinstance((await pair.prefill.router.ended(key)).error, Unavailable)
        gate.open()
        await stopping
        assert isinstance((await pair.decode.router.ended(key)).error, TransferFailed)
        await pair.decode.here.quiet()


def many(dice: random.Random) -> list[Job]:
    return [
        job(f"r{number}", prompt=dice.randrange(1, 120), max_tokens=dice.randrange(2, 30), salt=number % 7)
        for number in range(64)
    ]


async def leave(pair: Pair, asked: Job, turns: int) -> None:
    """A request whose caller leaves after some turns of the event loop, wherever it then is."""
    running = asyncio.create_task(pair.generate(asked))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    for one in (pair.prefill, pair.decode):
        one.router.say(Abort(asked.key))


async def test_64_concurrent_requests_with_random_aborts(link: str) -> None:
    dice = random.Random(20261129)
    asked = many(dice)
    expected = [await locally(one) for one in asked]
    async with paired(link, fake_engine(blocks=800, max_jobs=64), fake_engine(blocks=800, max_jobs=64)) as pair:
        stay, go = asked[::2], asked[1::2]
        leaving = [asyncio.create_task(leave(pair, one, dice.randrange(300))) for one in go]
        answers = await asyncio.gather(*(pair.generate(one) for one in stay))
        assert answers == expected[::2]
        await asyncio.gather(*leaving)
        await pair.quiet()
        for one in (pair.prefill, pair.decode):
            assert all(len(endings) <= 1 for endings in one.router.heard.endings.values())
