"""Routes and their reasons: what `choose` returns and `headrace explain` shows."""

from dataclasses import dataclass

from headrace.core.fleet import Role, WorkerRef
from headrace.core.lifecycle import Transition
from headrace.core.waterfall import AttemptNote, Part


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as `choose` weighed it. score: expected milliseconds, lower is better; why: one phrase."""

    worker: WorkerRef
    role: Role
    cached_tokens: int
    running: int
    waiting: int
    credits: int
    score: float
    chosen: bool
    why: str


@dataclass(frozen=True, slots=True)
class Pull:
    """A prefix that a worker takes from another's cache before it begins.

    tokens: of the prefix, whole pages at both ends. fetch_ms, compute_ms: what the part that is missing is expected to
    take, one way and the other.
    """

    holder: WorkerRef
    tokens: int
    fetch_ms: float
    compute_ms: float


@dataclass(frozen=True, slots=True)
class Route:
    """Where one attempt goes. prefill is None for a local request, which `decode` serves alone.

    cached_tokens: expected in the cache of the worker that reads the prompt, those of `pull` among them.
    """

    decode: WorkerRef
    prefill: WorkerRef | None
    cached_tokens: int
    expected_ttft_ms: float
    candidates: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    pull: Pull | None = None

    @property
    def reader(self) -> WorkerRef:
        """The worker that computes the prompt."""
        return self.prefill or self.decode


@dataclass(frozen=True, slots=True)
class Explanation:
    """The life of one request: each attempt's route, each phase change, how it ended.

    actual_cached_tokens, actual_ttft_ms: what came of the expectation; 0 where it never came to be.
    notes: what both ends saw of each transfer that completed. waterfall: the parts of its time, one after the other;
    their sum is all of it, and before the first commit or first_decode its time to first token. Of a request that
    several routers served they are those at each, one router after the other, and attempts are counted on.
    """

    request: str
    model: str
    prompt_tokens: int
    routes: tuple[Route, ...]
    transitions: tuple[Transition, ...]
    outcome: str
    actual_cached_tokens: int
    actual_ttft_ms: float
    notes: tuple[AttemptNote, ...] = ()
    waterfall: tuple[Part, ...] = ()
