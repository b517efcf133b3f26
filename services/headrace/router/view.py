"""What `choose` looks at: the request's facts and each worker as this router sees it. Values only."""

from dataclasses import dataclass, field

from headrace.core.fleet import WorkerRef, WorkerState


@dataclass(frozen=True, slots=True)
class Inflight:
    """What one router has given to one worker. unreflected: jobs that the worker's last load may not count yet.

    uncomputed_tokens: prompt tokens of jobs that have not brought their first token.
    """

    jobs: int = 0
    unreflected: int = 0
    uncomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker: what it says of itself, what this router gave it, whether it lately answered Busy.

    new_to: for a prefill worker, the decode workers to which it is only just being introduced.
    """

    state: WorkerState
    inflight: Inflight = field(default_factory=Inflight)
    cooling: bool = False
    new_to: frozenset[WorkerRef] = frozenset()

    @property
    def credits(self) -> int:
        """Jobs it will still take, those under way counted."""
        return max(0, self.state.load.credits - self.inflight.unreflected)

    @property
    def running(self) -> int:
        """Sequences beside which a new one will run."""
        return max(self.state.load.running, self.inflight.jobs)

    @property
    def max_tokens(self) -> int:
        """Tokens, prompt and answer together, that one sequence may have here."""
        info = self.state.info
        return min(info.max_model_len, info.num_blocks * info.layout.block_tokens)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's facts. tokens: those to be in KV before the next one. total_tokens: with all that may come.

    excluded: workers that are dead. avoided: workers to take only when nothing else is left.
    """

    model: str
    tokens: int
    total_tokens: int
    excluded: frozenset[WorkerRef] = frozenset()
    avoided: frozenset[WorkerRef] = frozenset()
