"""The contract of PrefixIndex and PrefixSource, over memory and a real Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fixtures.eventually import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.blocks import IndexUpdate
from headrace.core.fleet import WorkerRef
from headrace.prefix.holders import digest_of
from headrace.prefix.index import Change, ChangeKind, Head, Snapshot
from headrace.prefix.memory_index import MemoryIndex
from headrace.prefix.redis_index import RedisIndex
from headrace.store.connection import Store

Index = MemoryIndex | RedisIndex

LONG_S = 60.0
SHORT_S = 0.1
OLD = WorkerRef("rack:1/worker", "old")
NEW = WorkerRef("rack:1/worker", "new")


def block(number: int) -> bytes:
    return number.to_bytes(16, "big")


A, B, C, D = (block(number) for number in (1, 2**40, 2**80, 2**127 + 5))


@pytest.fixture(params=["memory", "redis"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    if request.param == "memory":
        yield MemoryIndex()
        return
    store = Store(request.getfixturevalue("redis_url"))
    try:
        yield RedisIndex(store, fleet=request.getfixturevalue("fleet"))
    finally:
        await store.close()


def reset(ref: WorkerRef, sequence: int, *stored: bytes) -> IndexUpdate:
    return IndexUpdate(ref, sequence, stored, reset=True)


async def held(index: Index, ref: WorkerRef) -> frozenset[bytes] | None:
    snapshot = await index.snapshot(ref)
    return None if snapshot is None else snapshot.hashes


async def test_the_life_of_an_entry(index: Index) -> None:
    # 1. Nobody holds anything.
    assert await index.heads() == {}
    assert await index.snapshot(NEW) is None
    # 2. An incarnation begins with a reset.
    assert await index.apply(reset(NEW, 1, A, B), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(1, frozenset({A, B}))
    # 3. It goes on with what changes.
    assert await index.apply(IndexUpdate(NEW, 2, stored=(C, D), evicted=(A,)), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(2, frozenset({B, C, D}))
    assert await index.heads() == {NEW: Head(2, 3, digest_of((B, C, D)))}
    # 4. It is renewed.
    assert await index.renew(NEW, LONG_S)
    # 5. It is dropped.
    await index.drop(NEW)
    assert await index.heads() == {}
    assert not await index.renew(NEW, LONG_S)
    # 6. What was still on its way is refused, a reset too.
    assert not await index.apply(IndexUpdate(NEW, 3, stored=(A,)), LONG_S)
    assert not await index.apply(reset(NEW, 4, A), LONG_S)
    assert await index.snapshot(NEW) is None


async def test_an_unknown_incarnation_must_reset(index: Index) -> None:
    assert not await index.apply(IndexUpdate(NEW, 1, stored=(A,)), LONG_S)
    assert await index.snapshot(NEW) is None


async def test_an_entry_may_be_empty(index: Index) -> None:
    assert await index.apply(reset(NEW, 1), LONG_S)
    assert await index.heads() == {NEW: Head(1, 0, 0)}


async def test_a_gap_is_refused_and_changes_nothing(index: Index) -> None:
    await index.apply(reset(NEW, 1, A), LONG_S)
    assert not await index.apply(IndexUpdate(NEW, 3, stored=(B,), evicted=(A,)), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(1, frozenset({A}))
    # A reset closes the gap.
    assert await index.apply(reset(NEW, 4, B), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(4, frozenset({B}))


async def test_a_repeated_or_overtaken_update_changes_nothing(index: Index) -> None:
    await index.apply(reset(NEW, 1, A), LONG_S)
    update = IndexUpdate(NEW, 2, stored=(B,))
    assert await index.apply(update, LONG_S)
    assert await index.apply(IndexUpdate(NEW, 3, evicted=(B,)), LONG_S)
    tail = await index.tail()
    assert await index.apply(update, LONG_S)
    assert await index.apply(reset(NEW, 1, D), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(3, frozenset({A}))
    assert await index.tail() == tail


async def test_evicted_applies_before_stored(index: Index) -> None:
    await index.apply(reset(NEW, 1, A), LONG_S)
    await index.apply(IndexUpdate(NEW, 2, stored=(A, B), evicted=(A, B, C)), LONG_S)
    assert await held(index, NEW) == {A, B}
    assert (await index.heads())[NEW].digest == digest_of((A, B))


async def test_incarnations_racing_keep_apart(index: Index) -> None:
    # 1. The old incarnation's updates are still arriving when the new one begins.
    await index.apply(reset(OLD, 1, A), SHORT_S)
    await asyncio.gather(
        index.apply(IndexUpdate(OLD, 2, stored=(B,)), SHORT_S),
        index.apply(reset(NEW, 1, C), LONG_S),
        index.apply(IndexUpdate(OLD, 3, stored=(D,)), SHORT_S),
    )
    assert await held(index, NEW) == {C}
    # 2. The old one is dead: nobody renews it.
    await eventually(lambda: _is(index, {NEW: Head(1, 1, digest_of((C,)))}))
    # 3. Its last words come too late.
    assert not await index.apply(IndexUpdate(OLD, 4, stored=(A,)), LONG_S)
    assert await index.heads() == {NEW: Head(1, 1, digest_of((C,)))}


async def _is(index: Index, expected: dict[WorkerRef, Head]) -> bool:
    return await index.heads() == expected


async def test_an_entry_expires_unless_renewed(index: Index) -> None:
    # OLD would expire before NEW, were it not renewed.
    await index.apply(reset(OLD, 1, A), 0.5)
    await index.apply(reset(NEW, 1, A), 0.5)
    assert await index.renew(OLD, LONG_S)
    await eventually(lambda: _is(index, {OLD: Head(1, 1, digest_of((A,)))}))
    assert await index.snapshot(NEW) is None
    assert not await index.renew(NEW, LONG_S)
    # The same incarnation, which was only slow, may begin again.
    assert await index.apply(reset(NEW, 5, B), LONG_S)
    assert await held(index, NEW) == {B}


async def test_followers_see_every_change_in_order(index: Index) -> None:
    start = await index.tail()
    await index.apply(reset(NEW, 1, A), LONG_S)
    await index.apply(IndexUpdate(NEW, 2, stored=(B, C), evicted=(A,)), LONG_S)
    await index.drop(NEW)
    seen: list[Change] = []
    position = start
    while len(seen) < 3:
        position, changes = await index.changes(position, 1.0)
        seen.extend(changes)
    assert seen == [
        Change(NEW, ChangeKind.RESET, 1),
        Change(NEW, ChangeKind.DELTA, 2, (B, C), (A,)),
        Change(NEW, ChangeKind.DROPPED, 0),
    ]
    assert position == await index.tail()


async def test_followers_wait_for_news(index: Index) -> None:
    start = await index.tail()
    # 1. No news: the wait ends by itself, where it began.
    assert await index.changes(start, 0.02) == (start, ())
    # 2. News end the wait.
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(index.changes(start, LONG_S))
        await index.apply(reset(NEW, 1), LONG_S)
    assert waiting.result()[1] == (Change(NEW, ChangeKind.RESET, 1),)


async def test_thousands_of_blocks_in_one_update(index: Index) -> None:
    blocks = tuple(block(number << 64) for number in range(5000))
    await index.apply(reset(NEW, 1, *blocks), LONG_S)
    await index.apply(IndexUpdate(NEW, 2, evicted=blocks[::2]), LONG_S)
    assert await index.snapshot(NEW) == Snapshot(2, frozenset(blocks[1::2]))
    assert await index.heads() == {NEW: Head(2, 2500, digest_of(blocks[1::2]))}


steps = st.lists(
    st.tuples(
        st.sampled_from(["delta", "delta", "delta", "reset", "repeat", "skip"]),
        st.frozensets(st.integers(0, 9)),
        st.frozensets(st.integers(0, 9)),
    ),
    max_size=12,
)


@given(steps=steps)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_any_history_leaves_what_a_plain_set_would(
    kind: str, redis_url: str, steps: list[tuple[str, frozenset[int], frozenset[int]]]
) -> None:
    asyncio.run(_play(kind, redis_url, steps))


async def _play(kind: str, redis_url: str, steps: list[tuple[str, frozenset[int], frozenset[int]]]) -> None:
    store = Store(redis_url)
    index: Index = MemoryIndex() if kind == "memory" else RedisIndex(store, fleet="model-test")
    try:
        ref = WorkerRef("w", f"{id(store):x}-{asyncio.get_running_loop().time()}".replace(":", ""))
        model: set[bytes] = set()
        sequence = 1
        last = reset(ref, sequence)
        assert await index.apply(last, LONG_S)
        for action, stored, evicted in steps:
            new, old = tuple(map(block, stored)), tuple(map(block, evicted))
            if action == "repeat":
                assert await index.apply(last, LONG_S)
            elif action == "skip":
                assert not await index.apply(IndexUpdate(ref, sequence + 2, new, old), LONG_S)
            else:
                sequence += 1
                last = IndexUpdate(ref, sequence, new, old, reset=action == "reset")
                assert await index.apply(last, LONG_S)
                model = set(new) if action == "reset" else (model - set(old)) | set(new)
        assert await index.snapshot(ref) == Snapshot(sequence, frozenset(model))
        assert (await index.heads())[ref] == Head(sequence, len(model), digest_of(model))
        await index.drop(ref)
    finally:
        await store.close()
