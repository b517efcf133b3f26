"""The schedule: which sequences compute how many tokens in a step, and who gives way when pages run out.

Owns the policy over sequences and the prefix cache's blocks; it runs nothing and reports nothing.
One rule covers chunked prefill, decode and recompute: computed tokens chase known tokens under a budget.
"""

from collections.abc import Iterable

from headrace.core.blocks import blocks_for
from headrace.engine.prefix_cache import PrefixCache
from headrace.engine.sequence import Sequence, State

Shares = dict[Sequence, int]


class Schedule:
    """Plans steps of at most `token_budget` tokens. The oldest sequence always progresses."""

    def __init__(self, cache: PrefixCache, token_budget: int) -> None:
        self._cache = cache
        self._token_budget = token_budget
        self.starved = False

    def plan(self, live: Iterable[Sequence]) -> Shares:
        """How many tokens each sequence computes now. live: oldest first. Their blocks are held on return.

        Running sequences go before waiting ones and single tokens before chunks, so that a long prompt delays
        running streams by one chunk, never by itself.
        """
        sequences = list(live)
        running = [sequence for sequence in sequences if sequence.state is State.RUNNING]
        shares: Shares = {}
        self.starved = False
        for sequence in sorted(running, key=lambda one: one.pending > 1):
            count = min(sequence.pending, self._left(shares))
            if sequence.state is State.RUNNING and count and self._grow(sequence, count, running, shares):
                shares[sequence] = count
        short = self.starved or any(sequence.state is State.WAITING for sequence in running)
        if not short:
            self._admit_waiting(sequences, shares)
        return shares

    def reserve(self, sequence: Sequence, headroom: int) -> bool:
        """Admit a sequence if blocks for all its known tokens are there and `headroom` more stay free."""
        found = self._cache.match(sequence.job.root, sequence.hashes, sequence.tokens)
        blocks = self._cache.reserve(blocks_for(len(sequence.tokens)), found, headroom)
        if blocks is None:
            return False
        sequence.admit(found, blocks)
        return True

    def _admit_waiting(self, sequences: list[Sequence], shares: Shares) -> None:
        for sequence in sequences:
            if sequence.state is not State.WAITING:
                continue
            # One block a running sequence is left for growth: without it an admission is soon undone.
            if not self._left(shares) or not self.reserve(sequence, headroom=len(shares)):
                return
            shares[sequence] = min(sequence.pending, self._left(shares))

    def _grow(self, sequence: Sequence, count: int, running: list[Sequence], shares: Shares) -> bool:
        missing = blocks_for(sequence.computed + count) - len(sequence.blocks)
        if missing <= 0:
            return True
        while (blocks := self._cache.reserve(missing, [])) is None:
            movable = [one for one in running if one.state is State.RUNNING and not one.pinned]
            if movable == [sequence]:
                self.starved = True  # only transfers hold the rest, and they end by themselves
                return False
            victim = movable[-1]
            self._preempt(victim)
            shares.pop(victim, None)
            if victim is sequence:
                return False
        sequence.blocks += blocks
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._cache.release(sequence.blocks)
        sequence.blocks, sequence.path = [], []
        sequence.computed = 0
        sequence.state = State.WAITING

    def _left(self, shares: Shares) -> int:
        return self._token_budget - sum(shares.values())
