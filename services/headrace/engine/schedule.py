"""The schedule: which sequences compute how many tokens in a step, and who gives way when pages run out.

Owns the policy over sequences and the allocator's pages; it runs nothing and reports nothing. One rule covers chunked
prefill, decode and recompute: computed tokens chase known tokens under a budget. The policy in words, and why:
docs/decisions/0009-scheduling.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.blocks import BLOCK_TOKENS
from headrace.engine.allocator import Allocator
from headrace.engine.prefix_cache import Hit
from headrace.engine.sequence import Sequence, State

PATIENCE = 32
"""How often others may go before a sequence before it goes before all others."""

WORTH_WAITING = BLOCK_TOKENS
"""Tokens that one sequence must be about to get from another to wait for it, unless it misses fewer."""

Shares = dict[Sequence, int]


@dataclass(slots=True)
class _Step:
    """A step in the making. left: tokens of the budget nobody has. running: who may get some, most urgent first."""

    left: int
    running: list[Sequence]
    shares: Shares = field(default_factory=dict)

    def give(self, sequence: Sequence, count: int) -> None:
        self.shares[sequence] = count
        self.left -= count

    def take_back(self, sequence: Sequence) -> None:
        self.left += self.shares.pop(sequence, 0)


class Schedule:
    """Plans steps of at most `token_budget` tokens. The oldest sequence that can give way never has to.

    short: in the last plan somebody stood still, gave way or waited for want of pages. preempted: how many sequences
    lost their pages in it. found: the prompts that began in it on whole pages which a transfer can send now.
    """

    def __init__(self, allocator: Allocator, token_budget: int) -> None:
        self._allocator = allocator
        self._token_budget = token_budget
        self._steps = 0
        self.short = False
        self.preempted = 0
        self.found: list[Sequence] = []

    def plan(self, live: Iterable[Sequence], prompt_tokens: int | None = None) -> Shares:
        """How many tokens each sequence computes now. Their pages are held on return.

        prompt_tokens: of what the streams leave of the budget, prompts get no more than this; None: all of it.
        Streams go before prompts, so that a long prompt delays them by one batch, never by itself. When there is
        something `found`, nobody computes: a batch takes long, and the transfer has no need to wait for it. That
        costs nobody a turn, and happens once a prompt at most.
        """
        sequences = sorted(live, key=_rank)
        self._steps += 1
        self.short, self.preempted, self.found = False, 0, []
        step = _Step(self._token_budget, [one for one in sequences if one.state is State.RUNNING])
        prompts = [one for one in step.running if one.pending > 1]
        for sequence in [one for one in step.running if one.pending == 1]:
            self._serve_stream(sequence, step)
        if not self.short:
            begun = self._admit([one for one in sequences if one.state is State.WAITING], step)
            self.found = [one for one in begun if one.sends and one.computed >= self._allocator.page_tokens]
            if self.found:
                return {}
            prompts += begun
        if prompt_tokens is not None:
            step.left = min(step.left, prompt_tokens)
        self._serve_prompts([one for one in prompts if one.state is State.RUNNING], step)
        return step.shares

    def _serve_stream(self, sequence: Sequence, step: _Step) -> None:
        """One token, and a page for it if it needs one, another's if need be. It may be the one to give way."""
        if sequence.state is not State.RUNNING or not step.left:
            return
        while not self._allocator.grow(sequence, sequence.computed + 1):
            self.short = True
            victim = self._victim(step.running)
            if victim is None:
                return  # only transfers hold the rest, and they end by themselves
            self._allocator.preempt(victim)
            self.preempted += 1
            step.take_back(victim)
            if victim is sequence:
                return
        step.give(sequence, 1)

    def _victim(self, running: list[Sequence]) -> Sequence | None:
        """Who gives way: of the least urgent, the one that is cheapest to compute again, the youngest among equals.

        Never the oldest, and nobody whose pages a transfer uses or whose going would free nothing.
        """
        movable = sorted((one for one in running if one.state is State.RUNNING and not one.pinned), key=_age)
        victims: list[tuple[int, int, int, Sequence]] = []
        for sequence in movable[1:]:
            pages, cost = self._allocator.own_tokens(sequence)
            if pages:
                victims.append((-sequence.job.priority, cost, -sequence.age, sequence))
        return min(victims, key=lambda victim: victim[:3])[3] if victims else None

    def _admit(self, waiting: list[Sequence], step: _Step) -> list[Sequence]:
        """Waiting sequences begin while there are pages, the most urgent first; what does not fit holds up the rest.

        A page is left to every stream for its growth: without it an admission is soon undone.
        """
        admitted: list[Sequence] = []
        for sequence in waiting:
            if self._follows(sequence, step.running):
                continue
            hit = self._allocator.find(sequence)
            if self._follow(sequence, hit, step.running):
                continue
            headroom = sum(not one.pinned for one in step.running)
            if not self._allocator.admit(sequence, hit, headroom):
                self.short = True
                break
            sequence.served = self._steps - 1  # the end of the line
            step.running.append(sequence)
            admitted.append(sequence)
            for other in waiting:
                if other.state is State.WAITING and other.age < sequence.age:
                    other.passed += 1
        return admitted

    def _follow(self, sequence: Sequence, hit: Hit, running: list[Sequence]) -> bool:
        """Let it wait for a running sequence, no less urgent, that is just computing what it needs next."""
        rest = len(sequence.tokens) - 1 - hit.tokens
        if rest <= 0 or sequence.scoring or not self._allocator.finds:
            return False
        needed = hit.tokens + min(rest, WORTH_WAITING)
        for other in running:
            urgent = other.job.priority <= sequence.job.priority
            if urgent and other.computed < needed and other.shares(sequence, needed):
                sequence.leader, sequence.follows_to = other, min(sequence.common(other), len(sequence.tokens) - 1)
                sequence.passed = 0  # it waits because that is quicker
                return True
        return False

    def _follows(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Whether the one it waits for is still about to compute what they have in common."""
        leader = sequence.leader
        if leader is None or leader.computed >= sequence.follows_to or leader not in running:
            sequence.leader = None
            return False
        return True

    def _serve_prompts(self, prompts: list[Sequence], step: _Step) -> None:
        """What the streams left goes to one prompt after the other, the most urgent first and among equals in turn.

        The first in line gets all it can use. What it leaves goes to the next ones and costs them no turn.
        """
        if not step.left:
            return
        line = sorted(prompts, key=_turn)
        for sequence in line:
            if step.left:
                step.give(sequence, min(sequence.pending, step.left))
                sequence.passed = 0
            else:
                sequence.passed += 1
        if line:
            line[0].served = self._steps


def _age(sequence: Sequence) -> int:
    return sequence.age


def _urgency(sequence: Sequence) -> tuple[bool, int]:
    """Ascending: those that were passed over too often are all equal, and before the others."""
    if sequence.passed >= PATIENCE:
        return False, 0
    return True, sequence.job.priority


def _rank(sequence: Sequence) -> tuple[bool, int, int]:
    return *_urgency(sequence), sequence.age


def _turn(sequence: Sequence) -> tuple[bool, int, int, int]:
    return *_urgency(sequence), sequence.served, sequence.age
