"""A sequence: one job inside the engine, its tokens chasing their KV, and the rules that end it.

Owns state, no decisions about pages: schedule and allocator move sequences, the replica reports them.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile

from headrace.core.blocks import BLOCK_TOKENS, block_hash
from headrace.core.jobs import Job, JobKind, Outcome
from headrace.core.logprobs import TokenLogprob
from headrace.core.vocabulary import Vocabulary
from headrace.engine.history import TokenHistory
from headrace.engine.prefix_cache import Entry


class State(Enum):
    """waiting: for pages. granted: a decode job whose pages arrive. held: it computes no more and keeps its pages: a
    prefill job that is done, an export, or a job that was told to. ended: nothing left to compute, to be reported at
    the next step."""

    WAITING = "waiting"
    RUNNING = "running"
    GRANTED = "granted"
    HELD = "held"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """KV of the first `computed` of `tokens` stands in `blocks`; `path` are the full pages' prefix cache entries.

    age: engine-wide number, lower is older. passed: how often others went before it since it last got something.
    served: the last step in which it had its turn as a prompt. leader: while it waits, the one that is computing its
    first `follows_to` tokens. cached_tokens: prompt tokens found at the first
    admission, until they are reported. scores: logprobs of prompt tokens, until they are reported.
    """

    job: Job
    tokens: list[int]
    hashes: list[bytes]
    history: TokenHistory
    age: int = 0
    state: State = State.WAITING
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    path: list[Entry] = field(default_factory=list)
    passed: int = 0
    served: int = -1
    leader: "Sequence | None" = None
    follows_to: int = 0
    cached_tokens: int = 0
    scores: list[TokenLogprob] = field(default_factory=list)
    admitted: bool = False
    failed: bool = False
    outcome: Outcome | None = None

    @staticmethod
    def of(job: Job, age: int = 0) -> "Sequence":
        tokens = list(job.tokens)
        hashes = list(job.hashes[: len(tokens) // BLOCK_TOKENS])
        return Sequence(job, tokens, hashes, TokenHistory(tokens, job.prompt_len), age)

    @property
    def pending(self) -> int:
        """Known tokens whose KV is not computed."""
        return len(self.tokens) - self.computed

    @property
    def position(self) -> int:
        """Index of the next token among the request's generated tokens."""
        return len(self.tokens) - self.job.prompt_len

    @property
    def sends(self) -> bool:
        """Its pages leave over a transfer as soon as the KV of their tokens stands in them."""
        return self.job.kind is JobKind.PREFILL

    @property
    def exports(self) -> bool:
        """It only holds pages that others computed."""
        return self.job.kind is JobKind.EXPORT

    @property
    def pinned(self) -> bool:
        """Its pages are, or will be, read or written by a transfer: never take them away."""
        return self.sends or self.state in (State.GRANTED, State.HELD)

    @property
    def displaced(self) -> bool:
        """It lost its pages and waits for others."""
        return self.admitted and self.state is State.WAITING

    @property
    def receives(self) -> bool:
        """Its pages come over a transfer, which moves whole ones."""
        return self.job.kind is JobKind.DECODE and self.state is State.WAITING and not self.admitted

    @property
    def scoring(self) -> bool:
        """Every token of its prompt is to be scored, so every one has to be computed."""
        reads = self.job.kind not in (JobKind.DECODE, JobKind.EXPORT)
        wanted = self.job.sampling.prompt_logprobs is not None and reads
        return wanted and len(self.tokens) == self.job.prompt_len

    def shares(self, other: "Sequence", count: int) -> bool:
        """Whether both start with the same `count` tokens under the same root."""
        if self.job.root != other.job.root or min(len(self.tokens), len(other.tokens)) < count:
            return False
        blocks = min(count // BLOCK_TOKENS, len(self.hashes), len(other.hashes))
        if blocks and self.hashes[blocks - 1] != other.hashes[blocks - 1]:
            return False
        start = blocks * BLOCK_TOKENS
        return self.tokens[start:count] == other.tokens[start:count]

    def has_all_of(self, other: "Sequence") -> bool:
        """Whether the KV of all tokens of `other` stands in its pages and will stay as it is."""
        count = len(other.tokens)
        done = self.state is State.HELD and not self.failed and self.computed >= count
        return done and self.job.root == other.job.root and self.tokens[:count] == other.tokens

    def common(self, other: "Sequence") -> int:
        """How many tokens both start with, under one root."""
        blocks = bisect_left(
            range(min(len(self.hashes), len(other.hashes))), True, key=lambda i: self.hashes[i] != other.hashes[i]
        )
        start = blocks * BLOCK_TOKENS
        pairs = zip(islice(self.tokens, start, None), islice(other.tokens, start, None), strict=False)
        return start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def admit(self, path: list[Entry], blocks: list[int], computed: int) -> None:
        """Give it its blocks, in which the KV of its first `computed` tokens stands already."""
        self.path, self.blocks, self.computed = path, blocks, computed
        self.state = State.RUNNING
        self.passed = 0
        if not self.admitted:
            self.admitted = True
            self.cached_tokens = min(self.computed, self.job.prompt_len)

    def restart(self) -> None:
        """It lost its pages, and begins anew with all the tokens that it knows."""
        self.blocks, self.path, self.scores = [], [], []
        self.computed, self.passed = 0, 0
        self.state = State.WAITING

    def take_scores(self) -> tuple[TokenLogprob, ...]:
        """The logprobs of the prompt, once."""
        scores, self.scores = tuple(self.scores), []
        return scores

    def take_cached_tokens(self) -> int:
        """The hit to report with the first token, and 0 ever after."""
        cached, self.cached_tokens = self.cached_tokens, 0
        return cached

    def full_hashes(self) -> list[bytes]:
        """Hashes of the blocks that are computed whole, chained on over generated tokens."""
        full = self.computed // BLOCK_TOKENS
        while len(self.hashes) < full:
            start = len(self.hashes) * BLOCK_TOKENS
            parent = self.hashes[-1] if self.hashes else self.job.root
            self.hashes.append(block_hash(parent, self.tokens[start : start + BLOCK_TOKENS]))
        return self.hashes[:full]


def outcome_of(job: Job, vocabulary: Vocabulary, token: int, length: int, max_model_len: int) -> Outcome | None:
    """How `token`, which made the sequence `length` tokens long, ends the request, or None."""
    sampling = job.sampling
    if token in sampling.stop_token_ids or (token in vocabulary.stop_ids and not sampling.ignore_eos):
        return Outcome.STOP
    spent = sampling.max_tokens is not None and length - job.prompt_len >= sampling.max_tokens
    return Outcome.LENGTH if spent or length >= max_model_len else None
