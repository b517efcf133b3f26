"""What the conductor holds of one running request. State only."""

import asyncio
from dataclasses import dataclass, field

import xxhash

from headrace.core.blocks import chain, root_hash
from headrace.core.errors import DeadlineExceeded, HeadraceError
from headrace.core.generation import GenerateRequest
from headrace.core.jobs import JobKey
from headrace.core.resume import prompt_digest
from headrace.core.route import Explanation, Route
from headrace.core.sampling import SamplingParams
from headrace.router.answer import Answer
from headrace.router.attempt import Attempt
from headrace.router.leg import Inbox
from headrace.router.life import Life
from headrace.router.models import ServedModel
from headrace.router.retries import Retries


@dataclass(slots=True)
class Run:
    """deadline: loop time. alarm: ends the request when it has come. prompt, sampling, answer: set once the request
    is prepared. unread: the caller has a chunk and does not ask for the next. over: the error with which it ended
    meanwhile, and that the caller has yet to be told. relieved: it has left a worker because that was crowded.
    asked_to_move: how often it was told to leave one."""

    request: GenerateRequest
    model: ServedModel
    deadline: float
    life: Life
    retries: Retries
    inbox: Inbox = field(default_factory=asyncio.Queue)
    alarm: asyncio.TimerHandle | None = None
    prompt: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    answer: Answer | None = None
    attempt: Attempt | None = None
    key: JobKey | None = None
    routes: list[Route] = field(default_factory=list)
    outcome: str = "running"
    unread: bool = False
    over: HeadraceError | None = None
    relieved: bool = False
    asked_to_move: int = 0

    @property
    def fingerprint(self) -> bytes:
        """What requests have in common that do the same to a worker; the same in every router."""
        return xxhash.xxh3_128(self.model.name.encode() + b"\0" + prompt_digest(self.prompt)).digest()

    @property
    def late(self) -> DeadlineExceeded:
        """What its caller is told at the deadline."""
        return DeadlineExceeded(f"The answer was not complete after {self.request.timeout_s:g} s.")

    def explanation(self) -> Explanation:
        """The request's life so far."""
        return Explanation(
            request=self.request.id,
            model=self.request.model,
            prompt_tokens=len(self.prompt),
            routes=tuple(self.routes),
            transitions=tuple(self.life.transitions),
            outcome=self.outcome,
            actual_cached_tokens=0 if self.answer is None else self.answer.usage.cached_tokens,
            actual_ttft_ms=self.life.ttft_ms,
            notes=tuple(self.life.notes),
            waterfall=self.life.parts,
        )


class Names:
    """The block hashes of one token sequence under each model digest that is asked for, made once each."""

    def __init__(self, tokens: tuple[int, ...], salt: str) -> None:
        self._tokens = tokens
        self._salt = salt.encode()
        self._made: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}

    def under(self, model_digest: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Root and hashes of the full blocks."""
        if model_digest not in self._made:
            root = root_hash(model_digest, tenant_salt=self._salt)
            self._made[model_digest] = root, chain(root, self._tokens)
        return self._made[model_digest]
