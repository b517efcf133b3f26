"""The allocator: gives sequences their pages, lets what they computed be found, and takes pages back.

Owns how a sequence meets the prefix cache, and the page copies that the next batch waits for. Who gets pages and who
gives way is the schedule's to say; it knows no runner.
"""

from collections import Counter
from collections.abc import Iterable

from headrace.core.blocks import blocks_for
from headrace.core.errors import InternalError
from headrace.engine.pool import BlockPool
from headrace.engine.prefix_cache import MISS, Hit, PrefixCache
from headrace.engine.sequence import Sequence, State

_NO_TOKEN = -1


class Allocator:
    """Pages of one replica. page_tokens: tokens of a page."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._copies: list[tuple[int, int]] = []

    @property
    def page_tokens(self) -> int:
        return self._cache.page_tokens

    @property
    def finds(self) -> bool:
        """Whether what one sequence computed can be found by others."""
        return self._cache.enabled

    @property
    def pool(self) -> BlockPool:
        return self._cache.pool

    @property
    def cached_blocks(self) -> int:
        """Names of 16-token blocks that can be found."""
        return len(self._cache)

    def pages_for(self, tokens: int) -> int:
        return blocks_for(tokens, self.page_tokens)

    def find(self, sequence: Sequence) -> Hit:
        """What of its tokens need not be computed. Transfers move whole pages, so a decode job takes no part of one."""
        if sequence.scoring:
            return MISS
        return self._cache.match(sequence.job.root, sequence.tokens, partial=not sequence.receives)

    def admit(self, sequence: Sequence, hit: Hit, headroom: int) -> bool:
        """Give it pages for all its known tokens if `headroom` more stay free; else nothing changed."""
        blocks = self._cache.reserve(self.pages_for(len(sequence.tokens)), hit, headroom)
        if blocks is None:
            return False
        if hit.source is not None:
            self._copies.append((hit.source.block, blocks[len(hit.pages)]))
        sequence.admit(list(hit.pages), blocks, hit.tokens)
        return True

    def pin(self, sequence: Sequence) -> bool:
        """Let it hold the whole pages of its tokens that are here, if one page stays free; else nothing changed."""
        # It computes nothing, so unlike others it needs no token over: one more than it has is looked for.
        hit = self._cache.match(sequence.job.root, [*sequence.tokens, _NO_TOKEN], partial=False)
        blocks = self._cache.reserve(len(hit.pages), hit, headroom=1 if hit.pages else 0)
        if blocks is None:
            return False
        sequence.admit(list(hit.pages), blocks, hit.tokens)
        return True

    def share(self, sequence: Sequence, source: Sequence) -> None:
        """Let it hold the pages of its tokens that `source` has, which nobody writes any more, the last one partly
        filled or not."""
        blocks = source.blocks[: self.pages_for(len(sequence.tokens))]
        for block in blocks:
            self.pool.retain(block)
        sequence.admit([], blocks, len(sequence.tokens))

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give it pages for its first `tokens` tokens; else nothing changed."""
        missing = self.pages_for(tokens) - len(sequence.blocks)
        if missing > 0:
            blocks = self._cache.reserve(missing)
            if blocks is None:
                return False
            sequence.blocks += blocks
        return True

    def publish(self, sequence: Sequence, *, tail: bool) -> None:
        """Let its computed full pages be found and, with `tail`, its partly filled one.

        A stream leaves the tail out until it ends: to move it along with every token would cost more than it finds.
        """
        if not self._cache.enabled:
            return
        root, tokens, path, size = sequence.job.root, sequence.tokens, sequence.path, self.page_tokens
        whole = sequence.computed // size
        if whole > len(path) or (path and not path[-1].live):
            self._cache.publish(root, sequence.full_hashes(), tokens, sequence.blocks, path)
        if tail and len(path) == whole and sequence.computed > whole * size:
            self._cache.publish_tail(root, tokens[whole * size : sequence.computed], sequence.blocks[whole], path)

    def preempt(self, sequence: Sequence) -> None:
        """Take its pages away. What it computed stays findable until somebody needs the pages."""
        self.publish(sequence, tail=True)
        self._cache.release(sequence.blocks)
        sequence.restart()

    def release(self, sequence: Sequence) -> list[int]:
        """Take the pages of a sequence that ends. Of a failed one nothing is found again; returns what nobody holds
        any more and must be cleared. Of a grant only whole pages were verified."""
        if not sequence.failed and not sequence.exports:
            self.publish(sequence, tail=sequence.state is not State.GRANTED)
        own = [block for block in sequence.blocks if self.pool.references(block) == 1]
        if sequence.failed:
            # Whoever shared them may have let them be found again before it went.
            self._cache.forget(own)
        self._cache.release(sequence.blocks)
        return own if sequence.failed else []

    def forget(self, sequence: Sequence) -> None:
        """Its pages must not be found any more."""
        self._cache.forget(sequence.blocks)

    def own_tokens(self, sequence: Sequence) -> tuple[int, int]:
        """Pages that it alone holds, and the computed tokens in them: what its preemption frees, and what it costs."""
        size, pool = self.page_tokens, self.pool
        own = [index for index, block in enumerate(sequence.blocks) if pool.references(block) == 1]
        return len(own), sum(max(0, min(size, sequence.computed - index * size)) for index in own)

    def take_copies(self) -> list[tuple[int, int]]:
        """Pages to copy (from, to), in this order, before the next batch or anything else writes."""
        copies, self._copies = self._copies, []
        return copies

    def drain(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """See PrefixCache."""
        return self._cache.drain()

    def wasted_slots(self, live: Iterable[Sequence]) -> int:
        """Token slots of held pages that no known token will fill. Only exports share a tail; the others add up."""
        return sum(max(0, len(one.blocks) * self.page_tokens - len(one.tokens)) for one in live if not one.exports)

    def check(self, live: Iterable[Sequence]) -> None:
        """Recount the pages from the sequences that hold them. Raises InternalError if anything is amiss."""
        holders: Counter[int] = Counter()
        for sequence in live:
            holders.update(sequence.blocks)
            if len(set(sequence.blocks)) != len(sequence.blocks):
                raise InternalError(f"Job {sequence.job.key} holds a page twice.")
            if sequence.state is State.WAITING and sequence.blocks:
                raise InternalError(f"Job {sequence.job.key} waits and holds pages.")
            shared = sequence.blocks[sequence.computed // self.page_tokens :]
            if sequence.state is not State.HELD and any(self.pool.references(block) > 1 for block in shared):
                raise InternalError(f"A page that job {sequence.job.key} is to write is held by another.")
        if self._copies:
            raise InternalError("Pages wait to be copied outside a step.")
        self._cache.check(holders)
