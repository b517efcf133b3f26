"""The slab pool: states, counts, and who goes first when slabs are short."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.transfer.slabs import Slab, SlabPool, SlabState


def pool_of(count: int) -> SlabPool:
    return SlabPool(count, 64)


def test_the_life_of_a_slab() -> None:
    pool = SlabPool(2, 64)
    pool.register(b"a")
    # 1. Posted, arrived, free again.
    slab = pool.take(b"a")
    assert slab is not None
    assert (len(slab.frame), slab.state) == (64, SlabState.POSTED)
    pool.arrive(slab)
    pool.give_back(slab)
    # 2. Or posted, quarantined, and free only when given back.
    slab = pool.take(b"a")
    assert slab is not None
    pool.quarantine(slab)
    assert pool.counts == {
        SlabState.FREE: 1,
        SlabState.POSTED: 0,
        SlabState.ARRIVED: 0,
        SlabState.QUARANTINED: 1,
    }
    pool.give_back(slab)
    pool.unregister(b"a")
    assert pool.counts[SlabState.FREE] == 2


def test_a_second_slab_waits_for_every_transfers_first() -> None:
    pool = pool_of(3)
    for owner in (b"a", b"b", b"c"):
        pool.register(owner)
    first = pool.take(b"a")
    assert first is not None
    assert pool.take(b"a") is None
    assert pool.take(b"c") is not None
    assert pool.take(b"b") is not None
    # None is free: who comes now waits, then goes before those who hold one.
    pool.register(b"d")
    assert pool.take(b"d") is None
    pool.give_back(first)
    assert pool.take(b"c") is None
    assert pool.take(b"d") is None, "a, registered earlier, has none again"
    pool.unregister(b"a")
    assert pool.take(b"d") is not None


def test_who_leaves_with_slabs_in_hand_gets_them_back_later() -> None:
    pool = pool_of(2)
    pool.register(b"a")
    slab = pool.take(b"a")
    assert slab is not None
    # 1. Nothing is kept back for it any more.
    pool.unregister(b"a")
    pool.register(b"b")
    other = pool.take(b"b")
    assert other is not None
    # 2. It is known again as one that holds a slab, so it goes behind who has none.
    pool.register(b"a")
    pool.give_back(other)
    assert pool.take(b"a") is None
    pool.unregister(b"b")
    assert pool.take(b"a") is not None
    pool.give_back(slab)
    assert pool.counts[SlabState.FREE] == 1


@settings(max_examples=60, stateful_step_count=40)
class PoolMachine(RuleBasedStateMachine):
    """Any use leaves the counts right, and who takes a further slab leaves one for each that has none."""

    COUNT = 4

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(self.COUNT)
        self.held: dict[bytes, list[Slab]] = {}
        self.back: set[bytes] = set()

    @rule(owner=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def take(self, owner: bytes) -> None:
        self.pool.register(owner)
        self.back.discard(owner)
        mine = self.held.setdefault(owner, [])
        free = self.pool.counts[SlabState.FREE]
        without = sum(not slabs for slabs in self.held.values())
        slab = self.pool.take(owner)
        if mine:
            assert (slab is not None) == (free > without)
        elif free >= without:
            assert slab is not None
        if slab is not None:
            assert all(slab is not other for slabs in self.held.values() for other in slabs)
            mine.append(slab)

    @rule(owner=st.sampled_from([b"a", b"b", b"c", b"d"]), doubt=st.booleans())
    def give_back(self, owner: bytes, doubt: bool) -> None:
        if self.held.get(owner):
            slab = self.held[owner].pop()
            if doubt:
                self.pool.quarantine(slab)
            self.pool.give_back(slab)
            if owner in self.back and not self.held[owner]:
                del self.held[owner]

    @rule(owner=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def stand_back(self, owner: bytes) -> None:
        """Ask for no more for now, whatever is still in hand."""
        self.pool.unregister(owner)
        self.back.add(owner)
        if not self.held.get(owner):
            self.held.pop(owner, None)

    @rule(owner=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def leave(self, owner: bytes) -> None:
        for slab in self.held.pop(owner, []):
            self.pool.give_back(slab)
        self.pool.unregister(owner)

    @invariant()
    def counts_are_right(self) -> None:
        held = sum(len(slabs) for slabs in self.held.values())
        assert self.pool.counts[SlabState.FREE] == self.COUNT - held
        assert sum(self.pool.counts.values()) == self.COUNT


TestPool = PoolMachine.TestCase
