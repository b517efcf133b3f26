"""Two workers whose pages have different sizes: the answers of one, with pages that prove what they hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from test_worker_pair import Pair, paired
from worker_harness import BLOCK_BYTES, Gate, attached, fake_engine, job, only, served

from headrace.core.blocks import chain
from headrace.core.errors import InvalidRequest
from headrace.core.jobs import Abort, Job, JobKey, Outcome

TOKEN_BYTES = BLOCK_BYTES // 16
UNEQUAL = [(32, 16), (16, 32), (48, 32), (32, 48), (64, 16), (16, 64)]
page_sizes = pytest.mark.parametrize(("here", "there"), UNEQUAL)


@asynccontextmanager
async def workers(here: int, there: int, *, gate: Gate | None = None) -> AsyncIterator[Pair]:
    """A prefill worker with pages of `here` tokens and a decode worker with pages of `there`."""
    prefill = fake_engine(blocks=128, page=here, batched_tokens=128, before_step=gate)
    async with paired("loopback", prefill, fake_engine(blocks=128, page=there)) as pair:
        yield pair


async def begin(pair: Pair, asked: Job, page: int) -> tuple[JobKey, Job]:
    """See Pair.begin; the router also knows the size of the prefill worker's pages."""
    return await pair.begin(replace(asked, peer_block_tokens=page))


async def locally(asked: Job) -> list[int]:
    async with served(fake_engine()) as alone, attached(alone.worker) as router:
        key = router.submit(asked)
        only(await router.ended(key), Outcome.LENGTH)
        return router.heard.tokens[key]


@page_sizes
async def test_answers_are_those_of_one_worker(here: int, there: int) -> None:
    async with workers(here, there) as pair:
        for number, prompt in enumerate((1, 16, 33, 64, 150, 300)):
            asked = job(f"r{number}", prompt=prompt, max_tokens=20, salt=number)
            assert await pair.finish(*await begin(pair, asked, here)) == await locally(asked)
        await pair.quiet()


@page_sizes
async def test_what_is_resident_does_not_travel_again(here: int, there: int) -> None:
    asked = job("a", prompt=150, max_tokens=20)
    async with workers(here, there) as pair:
        answer = await pair.finish(*await begin(pair, asked, here))
        before = pair.decode.bytes_moved("received")
        again = replace(asked, key=JobKey("b", 1))
        assert await pair.finish(*await begin(pair, again, here)) == answer
        resident = 149 // there * there
        assert pair.decode.router.heard.granted[again.key].resident_tokens == resident
        # Of the last page only what holds tokens travels, in wire blocks of 16.
        assert pair.decode.bytes_moved("received") - before == (160 - resident) * TOKEN_BYTES
        await pair.quiet()


@pytest.mark.parametrize(("here", "there"), [(16, 48), (48, 32)])
async def test_of_a_transfer_that_broke_whole_pages_stay(here: int, there: int) -> None:
    gate, asked = Gate(), job("a", prompt=300, max_tokens=20)
    expected = await locally(asked)
    async with workers(here, there, gate=gate) as pair:
        # 1. 128 of 300 tokens are computed; the units that they fill arrive.
        gate.shut_after(1)
        key, prefill = await begin(pair, asked, here)
        pair.prefill.router.submit(prefill)
        await gate.reached()
        assert prefill.ticket is not None
        unit = prefill.ticket.unit_blocks * prefill.ticket.wire_tokens
        await eventually(lambda: pair.decode.bytes_moved("received") == 128 // unit * unit * TOKEN_BYTES)
        for one in (pair.decode, pair.prefill):
            one.router.say(Abort(key))
        gate.open()
        only(await pair.decode.router.ended(key), Outcome.ABORTED)
        # 2. The second attempt finds the whole pages among them, and the answer is right.
        again = replace(asked, key=JobKey("a", 2))
        assert await pair.finish(*await begin(pair, again, here)) == expected
        arrived = 128 // unit * unit // there * there
        assert pair.decode.router.heard.granted[again.key].resident_tokens == arrived > 0
        await pair.quiet()


@pytest.mark.parametrize("page", [16, 32, 48])
async def test_blocks_have_the_same_names_in_pages_of_any_size(page: int) -> None:
    """What the fleet's index says of a worker is what its prefill uses, to the block, whatever its pages."""
    asked = job("a", prompt=100, max_tokens=1)
    async with served(fake_engine(page=page)) as here, attached(here.worker) as router:
        only(await router.ended(router.submit(asked)), Outcome.LENGTH)
        await here.quiet()
        named = {name for stored, _ in here.published for name in stored}
        assert named == set(asked.hashes[: 100 // page * page // 16])
        # 64 of its tokens are the start of another prompt: that many it need not compute, also within a page.
        tokens = (*asked.tokens[:64], *job("b", prompt=50, salt=9).tokens)
        other = replace(asked, key=JobKey("b", 1), tokens=tokens, prompt_len=114, hashes=chain(asked.root, tokens))
        other = replace(other, sampling=replace(other.sampling, max_tokens=2))
        assert sum(name in named for name in other.hashes) == 4
        only(await router.ended(router.submit(other)), Outcome.LENGTH)
        assert router.heard.cached[other.key] == 64
        await here.quiet()


async def test_a_ticket_for_other_weights_is_refused_by_name() -> None:
    other = fake_engine(weights=b"o" * 16)
    async with paired("loopback", None, other) as pair:
        asked = job("a")
        _, prefill = await pair.begin(asked)
        pair.prefill.router.submit(prefill)
        ending = await pair.prefill.router.ended(prefill.key)
        only(ending, Outcome.FAILED)
        assert isinstance(ending.error, InvalidRequest)
        assert "cannot exchange KV pages: their model digests are" in ending.error.message
        pair.decode.router.say(Abort(asked.key))
        await pair.quiet()
