"""Pool and prefix cache under any order of use: pages are accounted for, hits are true, names are reported."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headrace.core.blocks import BLOCK_TOKENS, blocks_for, chain, root_hash
from headrace.core.errors import InternalError
from headrace.engine.pool import BlockPool
from headrace.engine.prefix_cache import MISS, Entry, Hit, PrefixCache

BLOCKS = 10
ROOTS = (root_hash(b"a"), root_hash(b"b"))


class Holding:
    """A sequence as the cache sees one. filled: how many of its tokens are written."""

    def __init__(self, root: bytes, tokens: list[int], hit: Hit, blocks: list[int]) -> None:
        self.root, self.tokens, self.path, self.blocks = root, tokens, list(hit.pages), blocks
        self.hashes = list(chain(root, tokens))
        self.filled = hit.tokens


class Ledger(RuleBasedStateMachine):
    """Sequences come, write, publish, go. written: what each page really holds, as root, tokens before it and own."""

    holdings = Bundle("holdings")
    page = BLOCK_TOKENS

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BLOCKS, page_tokens=self.page)
        self.live: list[Holding] = []
        self.written: dict[int, tuple[bytes, tuple[int, ...], list[int]]] = {}
        self.known: set[bytes] = set()

    @rule(
        target=holdings,
        root=st.sampled_from(ROOTS),
        eighths=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        tail=st.integers(0, 1),
        headroom=st.integers(0, 2),
        partial=st.booleans(),
    )
    def admit(self, root: bytes, eighths: list[int], tail: int, headroom: int, partial: bool) -> Holding | None:
        tokens = [token for part in eighths for token in [part] * (self.page // 8)] + [7] * tail
        hit = self.cache.match(root, tokens, partial=partial)
        assert hit.tokens < len(tokens)
        assert hit.tokens == len(hit.pages) * self.page + hit.copied
        pages = [*hit.pages, *([hit.source] if hit.source else [])]
        for index, entry in enumerate(pages):
            start, end = index * self.page, min((index + 1) * self.page, hit.tokens)
            of, before, own = self.written[entry.block]
            assert (of, before, own[: end - start]) == (root, tuple(tokens[:start]), tokens[start:end])
        before_free = self.cache.pool.free
        got = self.cache.reserve(blocks_for(len(tokens), self.page), hit, headroom)
        if got is None:
            assert self.cache.pool.free == before_free
            return None
        assert got[: len(hit.pages)] == [entry.block for entry in hit.pages]
        holding = Holding(root, tokens, hit, got)
        copied = self.written[hit.source.block][2][: hit.copied] if hit.source else []
        for block in got[len(hit.pages) :]:
            self.written.pop(block, None)
        if copied:
            self.written[got[len(hit.pages)]] = (root, tuple(tokens[: len(hit.pages) * self.page]), list(copied))
        self.live.append(holding)
        return holding

    @rule(holding=holdings, count=st.integers(1, 3 * BLOCK_TOKENS), tail=st.booleans())
    def write_and_publish(self, holding: Holding | None, count: int, tail: bool) -> None:
        if holding is None or holding not in self.live:
            return
        tokens, size = holding.tokens, self.page
        for position in range(holding.filled, min(holding.filled + count, len(tokens))):
            block, start = holding.blocks[position // size], position // size * size
            assert self.cache.pool.references(block) == 1, "a shared page is written"
            self.written[block] = (holding.root, tuple(tokens[:start]), tokens[start : position + 1])
            holding.filled = position + 1
        whole = holding.filled // size
        names = holding.hashes[: holding.filled // BLOCK_TOKENS]
        self.cache.publish(holding.root, names, tokens, holding.blocks, holding.path)
        if tail and holding.filled > whole * size:
            part = tokens[whole * size : holding.filled]
            self.cache.publish_tail(holding.root, part, holding.blocks[whole], holding.path)
        found = self.cache.match(holding.root, [*tokens[: holding.filled], 8], partial=tail)
        assert found.tokens >= (holding.filled if tail else whole * size)

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


class WidePages(Ledger):
    """Pages of several named blocks."""

    page = 3 * BLOCK_TOKENS


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40)
TestWidePages = WidePages.TestCase
TestWidePages.settings = settings(max_examples=40, stateful_step_count=40)


def _cached(cache: PrefixCache, tokens: list[int]) -> Holding:
    blocks = cache.reserve(len(tokens) // BLOCK_TOKENS)
    assert blocks is not None
    holding = Holding(ROOTS[0], tokens, MISS, blocks)
    cache.publish(ROOTS[0], holding.hashes, tokens, blocks, holding.path)
    return holding


def _found(cache: PrefixCache, tokens: list[int]) -> Hit:
    return cache.match(ROOTS[0], [*tokens, 9], partial=False)


def test_tails_are_used_up_before_heads() -> None:
    cache = PrefixCache(4)
    tokens = [token for token in range(4) for _ in range(BLOCK_TOKENS)]
    holding = _cached(cache, tokens)
    cache.release(holding.blocks)
    cache.drain()
    for left in (3, 2, 1, 0):
        assert cache.reserve(1) is not None
        assert cache.drain() == ((), (holding.hashes[left],))
        assert len(_found(cache, tokens).pages) == left


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(3)
    first, second = _cached(cache, [1] * BLOCK_TOKENS), _cached(cache, [2] * BLOCK_TOKENS)
    cache.release(first.blocks)
    cache.release(second.blocks)
    cache.reserve(1, _found(cache, first.tokens))  # used again
    cache.reserve(2)
    assert [len(_found(cache, one.tokens).pages) for one in (first, second)] == [1, 0]


def test_a_copied_page_was_used_just_now() -> None:
    cache = PrefixCache(3)
    first, second = _cached(cache, [1] * BLOCK_TOKENS), _cached(cache, [2] * BLOCK_TOKENS)
    cache.release(first.blocks)
    cache.release(second.blocks)
    hit = cache.match(ROOTS[0], [1, 1, 1, 5, 5], partial=True)
    assert (hit.source and hit.source.block, hit.copied) == (first.blocks[0], 3)
    cache.reserve(1, hit)
    cache.reserve(1)
    assert [len(_found(cache, one.tokens).pages) for one in (first, second)] == [1, 0]


def test_the_closest_page_is_the_one_that_starts_alike_for_longest() -> None:
    cache = PrefixCache(6)
    for tokens in ([1] * 16, [1] * 9 + [0] * 7, [1] * 5 + [2] * 11, [2] * 16):
        _cached(cache, tokens)
    tail = cache.reserve(1)
    assert tail is not None
    cache.publish_tail(ROOTS[0], [1] * 9 + [3, 4], tail[0], [])
    for tokens, copied in (
        ([1] * 9 + [3, 4, 5], 11),
        ([1] * 9 + [0, 0, 5], 11),
        ([1] * 12 + [7], 12),
        ([1] * 16 + [7], 0),  # the whole page is shared, and nothing comes after it
        ([1] * 16, 15),
        ([1, 2], 1),
        ([3], 0),
        ([0] * 16, 0),
    ):
        assert cache.match(ROOTS[0], tokens, partial=True).copied == copied, tokens
        assert cache.match(ROOTS[0], tokens, partial=False).copied == 0


def test_a_tail_that_another_page_holds_too_is_kept_once() -> None:
    cache = PrefixCache(4)
    full = _cached(cache, [1] * 16)
    part = cache.reserve(1)
    assert part is not None
    cache.publish_tail(ROOTS[0], [1] * 9, part[0], [])
    cache.release(full.blocks)
    cache.release(part)
    assert cache.reserve(1) == part  # nothing worth keeping, so it goes first
    assert len(_found(cache, [1] * 16).pages) == 1


def test_a_tail_that_fills_up_is_one_page_under_one_name() -> None:
    cache, tokens = PrefixCache(4), [1] * 16
    blocks, path = cache.reserve(1), list[Entry]()
    assert blocks is not None
    for filled in (3, 9, 9, 15):
        cache.publish_tail(ROOTS[0], tokens[:filled], blocks[0], path)
        assert cache.match(ROOTS[0], tokens, partial=True).copied == filled
        cache.check(Counter(blocks))
    assert cache.drain() == ((), ())  # the fleet hears of whole blocks
    cache.publish(ROOTS[0], list(chain(ROOTS[0], tokens)), tokens, blocks, path)
    assert cache.drain() == (chain(ROOTS[0], tokens), ())
    assert len(_found(cache, tokens).pages) == 1
    cache.check(Counter(blocks))


def test_wide_pages_share_the_names_they_begin_with() -> None:
    cache = PrefixCache(4, page_tokens=2 * BLOCK_TOKENS)
    names: list[tuple[bytes, ...]] = []
    for last in (2, 3):
        tokens = [1] * 16 + [last] * 16
        blocks = cache.reserve(1)
        assert blocks is not None
        names.append(chain(ROOTS[0], tokens))
        cache.publish(ROOTS[0], list(names[-1]), tokens, blocks, [])
        cache.release(blocks)
    assert cache.drain() == ((names[0][0], names[0][1], names[1][1]), ())
    cache.reserve(3)  # one of the two goes: the name they share stays
    assert cache.drain() == ((), (names[0][1],))
    cache.reserve(1)
    assert cache.drain() == ((), names[1])


def test_a_head_that_goes_takes_its_tails_along() -> None:
    cache = PrefixCache(4)
    tokens = [1] * BLOCK_TOKENS + [2] * BLOCK_TOKENS
    first = _cached(cache, tokens[:BLOCK_TOKENS])
    twin = _cached(cache, tokens)  # its own copy of the head, while the first one's is found
    cache.release(first.blocks)
    assert cache.reserve(2) is not None
    assert len(cache) == 0
    assert cache.reserve(1) is None
    cache.release(twin.blocks)
    assert cache.reserve(1) is not None


def test_check_finds_what_is_broken() -> None:
    def cache() -> tuple[PrefixCache, Entry, list[int]]:
        cache = PrefixCache(4)
        holding = _cached(cache, [1] * 32)
        return cache, holding.path[0], holding.blocks

    for breaking in (
        lambda cache, entry, blocks: setattr(entry, "live", False),
        lambda cache, entry, blocks: setattr(entry, "block", 3),
        lambda cache, entry, blocks: setattr(entry, "hashes", ()),
        lambda cache, entry, blocks: entry.children.append(entry.children[0]),
        lambda cache, entry, blocks: entry.children.clear(),
        lambda cache, entry, blocks: cache.pool.retain(blocks[0]),
    ):
        broken, entry, blocks = cache()
        broken.check(Counter(blocks))
        breaking(broken, entry, blocks)
        with pytest.raises(InternalError):
            broken.check(Counter(blocks))


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
