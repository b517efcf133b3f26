"""What both ends say of a transfer, over every link; and when the decode side says that it needs its peer no more."""

import asyncio

import pytest
from fixtures.eventually import eventually
from test_worker_pair import BLOCK_BYTES, Pair, paired
from worker_harness import Gate, fake_engine, job, only

from headrace.core.jobs import Abort, Activate, JobKey, Outcome
from headrace.core.waterfall import TransferNote

pytestmark = pytest.mark.parametrize("link", ["loopback", "tcp", "ucx", "nccl"])


async def notes(pair: Pair, key: JobKey) -> tuple[TransferNote, TransferNote]:
    """Of the sender, and of the receiver, once both have said them."""
    sent = (await pair.prefill.router.ended(key)).note
    await pair.decode.router.until(lambda heard: key in heard.committed)
    assert sent is not None
    return sent, pair.decode.router.heard.committed[key].note


@pytest.mark.parametrize("prompt", [1, 300])
async def test_both_ends_say_what_moved(link: str, prompt: int) -> None:
    async with paired(link) as pair:
        asked = job("a", prompt=prompt, max_tokens=20)
        await pair.generate(asked)
        sent, taken = await notes(pair, asked.key)
        blocks = -(-prompt // 16)
        for side, note in ((pair.prefill, sent), (pair.decode, taken)):
            assert note.worker == side.here.worker.announce("127.0.0.1:1").ref
            assert note.payload_bytes == blocks * BLOCK_BYTES
            assert note.messages == -(-blocks // 4) + 1
            assert 0 <= note.exposed_s <= note.seconds
            assert 0 <= note.overlap_share <= 1
        await pair.quiet()
        inflight = pair.prefill.here.metrics.registry.get_sample_value("headrace_kv_transfer_inflight_bytes")
        assert inflight == 0


async def test_pages_that_leave_amid_the_prompt_are_hidden(link: str) -> None:
    """The first pages are long gone when the last ones are computed: what is exposed is the rest."""
    gate = Gate()
    async with paired(link, fake_engine(blocks=128, batched_tokens=128, before_step=gate)) as pair:
        gate.shut_after(1)
        key, prefill = await pair.begin(job("a", prompt=300, max_tokens=20))
        pair.prefill.router.submit(prefill)
        await gate.reached()
        await eventually(lambda: pair.decode.bytes_moved("received") == 8 * BLOCK_BYTES)
        before = asyncio.get_running_loop().time()
        gate.open()
        first = await pair.first_token(key)
        sent = (await pair.prefill.router.ended(key)).note
        rest = asyncio.get_running_loop().time() - before
        assert sent is not None
        # What came before the gate opened is hidden, and of what came after it no more than there was is exposed.
        assert sent.exposed_s < min(rest, sent.seconds)
        pair.decode.router.say(Activate(key, first))
        only(await pair.decode.router.ended(key), Outcome.LENGTH)
        await pair.quiet()


async def test_a_commit_needs_the_pages_and_the_first_token(link: str) -> None:
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=150, max_tokens=20))
        pair.prefill.router.submit(prefill)
        first = await pair.first_token(key)
        only(await pair.prefill.router.ended(key), Outcome.HANDED_OVER)
        await eventually(lambda: pair.decode.here.worker._legs.transfers == 0)
        assert pair.decode.router.heard.committed == {}
        pair.decode.router.say(Activate(key, first))
        _, taken = await notes(pair, key)
        # The pages were there first: nobody waited for them.
        assert taken.exposed_s == 0
        only(await pair.decode.router.ended(key), Outcome.LENGTH)
        await pair.quiet()


async def test_an_aborted_job_has_no_note(link: str) -> None:
    async with paired(link) as pair:
        key, prefill = await pair.begin(job("a", prompt=150, max_tokens=20))
        pair.prefill.router.submit(prefill)
        await pair.first_token(key)
        for side in (pair.decode, pair.prefill):
            side.router.say(Abort(key))
        assert (await pair.decode.router.ended(key)).note is None
        assert pair.decode.router.heard.committed == {}
        await pair.quiet()
