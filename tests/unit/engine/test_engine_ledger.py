"""Pool and prefix cache under any order of use: pages are accounted for, hits are true, names are reported."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headrace.core.blocks import BLOCK_TOKENS, chain, root_hash
from headrace.core.errors import InternalError
from headrace.engine.pool import BlockPool
from headrace.engine.prefix_cache import Entry, PrefixCache

BLOCKS = 10
ROOTS = (root_hash(b"a"), root_hash(b"b"))


class Holding:
    """A sequence as the cache sees one."""

    def __init__(self, root: bytes, tokens: list[int], path: list[Entry], blocks: list[int]) -> None:
        self.root, self.tokens, self.path, self.blocks = root, tokens, path, blocks
        self.hashes = list(chain(root, tokens))


class Ledger(RuleBasedStateMachine):
    """Sequences come, write, publish, go. written: what each page really holds, as root and tokens up to its end."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BLOCKS)
        self.live: list[Holding] = []
        self.written: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.known: set[bytes] = set()

    @rule(
        target=holdings,
        root=st.sampled_from(ROOTS),
        blocks=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        tail=st.integers(0, 1),
        headroom=st.integers(0, 2),
    )
    def admit(self, root: bytes, blocks: list[int], tail: int, headroom: int) -> Holding | None:
        tokens = [token for block in blocks for token in [block] * BLOCK_TOKENS] + [7] * tail
        found = self.cache.match(root, list(chain(root, tokens)), tokens)
        assert len(found) * BLOCK_TOKENS < len(tokens)
        for index, entry in enumerate(found):
            assert self.written[entry.block] == (root, tuple(tokens[: (index + 1) * BLOCK_TOKENS]))
        before = self.cache.pool.free
        got = self.cache.reserve(len(blocks) + tail, found, headroom)
        if got is None:
            assert self.cache.pool.free == before
            return None
        assert got[: len(found)] == [entry.block for entry in found]
        holding = Holding(root, tokens, found, got)
        for block in got[len(found) :]:
            self.written.pop(block, None)
        self.live.append(holding)
        return holding

    @rule(holding=holdings, share=st.integers(1, 5))
    def write_and_publish(self, holding: Holding | None, share: int) -> None:
        if holding is None or holding not in self.live:
            return
        full = min(share, len(holding.hashes))
        for index in range(len(holding.path), full):
            end = (index + 1) * BLOCK_TOKENS
            self.written[holding.blocks[index]] = (holding.root, tuple(holding.tokens[:end]))
        self.cache.publish(holding.root, holding.hashes[:full], holding.tokens, holding.blocks, holding.path)

    @rule(holding=consumes(holdings))
    def release(self, holding: Holding | None) -> None:
        if holding is not None and holding in self.live:
            self.live.remove(holding)
            self.cache.release(holding.blocks)

    @rule(holding=holdings)
    def forget(self, holding: Holding | None) -> None:
        if holding is not None and holding in self.live:
            self.cache.forget(holding.blocks)
            assert not any(entry.live and entry.block in holding.blocks for entry in holding.path)

    @rule()
    def report(self) -> None:
        stored, evicted = map(set, self.cache.drain())
        assert not stored & evicted
        assert evicted <= self.known
        assert not stored & self.known
        self.known = (self.known - evicted) | stored
        assert len(self.known) == len(self.cache)

    @invariant()
    def accounts_balance(self) -> None:
        holders = Counter(block for holding in self.live for block in holding.blocks)
        self.cache.check(holders)
        assert self.cache.pool.free == BLOCKS - len(holders)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def _cached(cache: PrefixCache, tokens: list[int]) -> Holding:
    blocks = cache.reserve(len(tokens) // BLOCK_TOKENS, [])
    assert blocks is not None
    holding = Holding(ROOTS[0], tokens, [], blocks)
    cache.publish(ROOTS[0], holding.hashes, tokens, blocks, holding.path)
    return holding


def test_tails_are_used_up_before_heads() -> None:
    cache = PrefixCache(4)
    tokens = [token for token in range(4) for _ in range(BLOCK_TOKENS)]
    holding = _cached(cache, tokens)
    cache.release(holding.blocks)
    cache.drain()
    for left in (3, 2, 1, 0):
        assert cache.reserve(1, []) is not None
        assert cache.drain() == ((), (holding.hashes[left],))
        assert len(cache.match(ROOTS[0], holding.hashes, [*tokens, 9])) == left


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(3)
    first, second = _cached(cache, [1] * BLOCK_TOKENS), _cached(cache, [2] * BLOCK_TOKENS)
    cache.release(first.blocks)
    cache.release(second.blocks)
    cache.reserve(1, cache.match(ROOTS[0], first.hashes, [*first.tokens, 9]))  # used again
    cache.reserve(2, [])
    assert [len(cache.match(ROOTS[0], one.hashes, [*one.tokens, 9])) for one in (first, second)] == [1, 0]


def test_a_head_that_goes_takes_its_tails_along() -> None:
    cache = PrefixCache(4)
    tokens = [1] * BLOCK_TOKENS + [2] * BLOCK_TOKENS
    first = _cached(cache, tokens[:BLOCK_TOKENS])
    twin = _cached(cache, tokens)  # its own copy of the head, under the first one's name
    cache.release(first.blocks)
    assert cache.reserve(2, []) is not None
    assert len(cache) == 0
    assert cache.reserve(1, []) is None
    cache.release(twin.blocks)
    assert cache.reserve(1, []) is not None


def test_pool_refuses_to_free_twice_and_to_give_what_it_has_not() -> None:
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(InternalError):
        pool.take()
    pool.release(block, keep=False)
    with pytest.raises(InternalError):
        pool.release(block, keep=False)


def test_check_counts_holders() -> None:
    pool = BlockPool(2)
    pool.retain(pool.take())
    pool.check(Counter({0: 2}))
    for wrong in (Counter[int](), Counter({0: 1}), Counter({0: 2, 1: 1})):
        with pytest.raises(InternalError):
            pool.check(wrong)
