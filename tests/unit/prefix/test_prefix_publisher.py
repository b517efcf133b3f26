"""Publisher over an index in memory that refuses, fails and forgets at the test's word."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fixtures.eventually import eventually

from headrace.core.blocks import IndexUpdate
from headrace.core.errors import Unavailable
from headrace.core.fleet import WorkerRef
from headrace.prefix.index import Snapshot
from headrace.prefix.memory_index import MemoryIndex
from headrace.prefix.publisher import Publisher

REF = WorkerRef("decode-0", "a")
BLOCKS = tuple(number.to_bytes(16, "little") for number in range(40))


class UnreliableIndex(MemoryIndex):
    """`lost_calls` updates do not arrive, `lost_answers` arrive and are not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[IndexUpdate] = []
        self.lost_calls = 0
        self.lost_answers = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def apply(self, update: IndexUpdate, ttl_s: float) -> bool:
        self.updates.append(update)
        if self.lost_calls:
            self.lost_calls -= 1
            raise Unavailable("The call was lost.")
        accepted = await super().apply(update, ttl_s)
        await self.may_answer.wait()
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("The answer was lost.")
        return accepted

    async def holds(self, *blocks: bytes) -> bool:
        snapshot = await self.snapshot(REF)
        return snapshot is not None and snapshot.hashes == set(blocks)


@pytest.fixture
def index() -> UnreliableIndex:
    return UnreliableIndex()


@pytest.fixture
async def publisher(index: UnreliableIndex) -> AsyncIterator[Publisher]:
    publisher = Publisher(index, REF, batch=8)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_the_cache_holds_is_what_the_index_holds(index: UnreliableIndex, publisher: Publisher) -> None:
    # 1. An entry is there before anything is cached, so that it can be renewed.
    await eventually(index.holds)
    # 2. Blocks come and go, more than one batch of them.
    publisher.publish(BLOCKS[:20], ())
    await eventually(lambda: index.holds(*BLOCKS[:20]))
    publisher.publish(BLOCKS[20:22], BLOCKS[:10])
    await eventually(lambda: index.holds(*BLOCKS[10:22]))
    # 3. No update was larger than a batch, none was missing, one was a reset.
    assert max(len(update.stored) + len(update.evicted) for update in index.updates) == 8
    assert [update.sequence for update in index.updates] == list(range(1, len(index.updates) + 1))
    assert [update.reset for update in index.updates] == [True] + [False] * (len(index.updates) - 1)


async def test_nothing_new_is_not_sent(index: UnreliableIndex, publisher: Publisher) -> None:
    await eventually(index.holds)
    publisher.publish((), ())
    publisher.publish(BLOCKS[:1], ())
    await eventually(lambda: index.holds(BLOCKS[0]))
    assert len(index.updates) == 2


async def test_changes_add_up_while_an_update_is_on_its_way(index: UnreliableIndex, publisher: Publisher) -> None:
    await eventually(index.holds)
    index.may_answer.clear()
    publisher.publish(BLOCKS[:1], ())
    await eventually(lambda: len(index.updates) == 2)
    # A block that came, went and came again, one that came and went, and one that stayed.
    publisher.publish(BLOCKS[1:4], ())
    publisher.publish((), BLOCKS[1:3])
    publisher.publish(BLOCKS[1:2], ())
    index.may_answer.set()
    await eventually(lambda: index.holds(BLOCKS[0], BLOCKS[1], BLOCKS[3]))
    assert len(index.updates) == 3
    assert set(index.updates[2].stored) == {BLOCKS[1], BLOCKS[3]}


async def test_an_index_that_was_away_gets_the_same_update_again(index: UnreliableIndex, publisher: Publisher) -> None:
    await eventually(index.holds)
    # 1. Two calls do not arrive, then one does and its answer is lost.
    index.lost_calls, index.lost_answers = 2, 1
    publisher.publish(BLOCKS[:3], ())
    await eventually(lambda: len(index.updates) == 5)
    # 2. All four were the same update; it counts once, and nothing had to begin anew.
    assert len(set(index.updates[1:])) == 1
    assert await index.snapshot(REF) == Snapshot(2, frozenset(BLOCKS[:3]))


async def test_an_entry_that_is_gone_is_sent_again(index: UnreliableIndex, publisher: Publisher) -> None:
    publisher.publish(BLOCKS[:20], ())
    await eventually(lambda: index.holds(*BLOCKS[:20]))
    # 1. The entry expires behind the publisher's back; its next renewal tells.
    await index.renew(REF, 0.0)
    assert await index.snapshot(REF) is None
    await publisher.renew(60.0)
    await eventually(lambda: index.holds(*BLOCKS[:20]))
    # 2. It expires again; this time the next update is refused.
    await index.renew(REF, 0.0)
    publisher.publish(BLOCKS[20:21], BLOCKS[:1])
    await eventually(lambda: index.holds(*BLOCKS[1:21]))


async def test_a_renewal_of_an_entry_that_is_there_sends_nothing(index: UnreliableIndex, publisher: Publisher) -> None:
    publisher.publish(BLOCKS[:2], ())
    await eventually(lambda: index.holds(*BLOCKS[:2]))
    sent = len(index.updates)
    await publisher.renew(60.0)
    publisher.publish(BLOCKS[2:3], ())
    await eventually(lambda: index.holds(*BLOCKS[:3]))
    assert len(index.updates) == sent + 1


async def test_after_drop_the_entry_stays_away(index: UnreliableIndex, publisher: Publisher) -> None:
    publisher.publish(BLOCKS[:2], ())
    await eventually(lambda: index.holds(*BLOCKS[:2]))
    await publisher.drop()
    publisher.publish(BLOCKS[2:4], ())
    # The refused update, then the refused reset.
    await eventually(lambda: index.updates[-1].reset and len(index.updates) > 3)
    assert await index.snapshot(REF) is None
