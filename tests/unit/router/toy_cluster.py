"""A router over scripted workers and the in-memory roster, in one process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from scripted_worker import DEADLINE_S, MODEL, ScriptedWorker, worker_info

from headrace.core.fleet import FleetStatus, Role, WorkerInfo, WorkerRef
from headrace.core.generation import Chunk, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.roster.memory_commons import MemoryCommons
from headrace.roster.memory_roster import MemoryRoster
from headrace.router.attachments import Patience
from headrace.router.models import ServedModel
from headrace.router.options import RouterOptions
from headrace.router.policy import Disaggregation, Policy
from headrace.router.service import Router
from headrace.router.view import Inflight
from headrace.telemetry.metrics import RouterMetrics
from headrace.text.detokenize import Detokenizer

TTL_S = 60.0


class ByteText:
    """A model whose token ids are bytes; 0 ends an answer."""

    vocabulary = Vocabulary(256, frozenset({0}))

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, TextPrompt):
            return tuple(prompt.text.encode())
        assert isinstance(prompt, TokenPrompt)
        return prompt.token_ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.piece, ids)).decode(errors="replace")

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        return Detokenizer([b"", *(bytes([byte]) for byte in range(1, 256))])

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id else b"<end>"

    def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """A word that begins with a capital is another one after a space."""
        ids = tuple(word.encode())
        return (ids, (32, *ids)) if word[0].isupper() else (ids,)


class ToyCluster:
    """workers: by name. hits: what the prefix index says. commons: what its router shares with others."""

    def __init__(
        self, options: RouterOptions, workers: Sequence[ScriptedWorker], commons: MemoryCommons | None = None
    ) -> None:
        self.commons = commons or MemoryCommons()
        self.workers = {worker.info.ref: worker for worker in workers}
        self.hits: dict[WorkerRef, int] = {}
        self.roster = MemoryRoster()
        self.metrics = RouterMetrics()
        self.router = Router(
            models=[ServedModel(MODEL, ByteText(), 512, 0)],
            roster=self.roster,
            connect=self._connect,
            match=self._match,
            commons=self.commons,
            metrics=self.metrics,
            options=options,
        )

    def _connect(self, info: WorkerInfo) -> ScriptedWorker:
        return self.workers[info.ref]

    def _match(self, hashes: Sequence[bytes]) -> Mapping[WorkerRef, int]:
        return {worker: min(blocks, len(hashes)) for worker, blocks in self.hits.items()}

    def worker(self, name: str) -> ScriptedWorker:
        return next(worker for ref, worker in self.workers.items() if ref.worker == name)

    async def join(self, worker: ScriptedWorker) -> None:
        self.workers[worker.info.ref] = worker
        await self.roster.join(worker.info, TTL_S)

    async def status_when(self, condition: Callable[[FleetStatus], bool]) -> FleetStatus:
        """The first status of which `condition` holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(status := await self.router.status()):
                await asyncio.sleep(0.002)
        return status

    async def attached(self, count: int) -> None:
        await self.status_when(lambda status: sum(worker.attached for worker in status.workers) == count)

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.status_when(lambda status: condition())

    def inflight(self, worker: ScriptedWorker) -> Inflight:
        return self.router._ledger.inflight(worker.info.ref)

    def counted(self, name: str, **labels: str) -> float:
        """What the router's metrics say."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def budget(self) -> float:
        """Retries that are left."""
        return self.router._standing.retries.left

    @property
    def ledger_jobs(self) -> int:
        return self.router._ledger.jobs

    async def quiet(self) -> None:
        """Every worker that lives has let go of every job, and every credit is back."""
        for worker in self.workers.values():
            if not worker.dead:
                await worker.until(lambda worker=worker: not worker.live)
        assert self.ledger_jobs == 0
        status = await self.router.status()
        assert (status.requests_running, status.requests_waiting) == (0, 0)


def options(disaggregation: Disaggregation = Disaggregation.ALWAYS, **changes: object) -> RouterOptions:
    base = RouterOptions(
        policy=Policy(disaggregation=disaggregation),
        patience=Patience(welcome_s=2.0, first_s=0.01, most_s=0.05, back_s=0.1),
        grace_s=0.2,
        comeback_s=0.2,
        grant_s=5.0,
        drain_s=0.5,
        metrics_s=1.0,
    )
    return replace(base, **changes)


@asynccontextmanager
async def cluster(
    *,
    prefill: int = 0,
    decode: int = 0,
    local: int = 0,
    with_options: RouterOptions | None = None,
    max_jobs: int = 8,
    commons: MemoryCommons | None = None,
) -> AsyncIterator[ToyCluster]:
    """Workers p1…, d1…, l1…, all attached."""
    counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.LOCAL: local}
    workers = [
        ScriptedWorker(worker_info(f"{role.value[0]}{number}", role, max_jobs=max_jobs))
        for role, count in counts.items()
        for number in range(1, count + 1)
    ]
    toy = ToyCluster(with_options or options(), workers, commons)
    for worker in workers:
        await toy.join(worker)
    await toy.router.start()
    try:
        await toy.attached(len(workers))
        yield toy
    finally:
        await toy.router.stop(0.0)


def ask(request: str = "r1", *, prompt: int = 40, max_tokens: int = 6, **changes: object) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, seed=3, max_tokens=max_tokens)
    request_ = GenerateRequest(request, MODEL, TokenPrompt(tuple(range(1, prompt + 1))), sampling, timeout_s=DEADLINE_S)
    return replace(request_, **changes)


def sampling(**changes: object) -> SamplingParams:
    return replace(SamplingParams(temperature=0.0, seed=3, max_tokens=6), **changes)


async def collect(toy: ToyCluster, request: GenerateRequest) -> list[Chunk]:
    return [chunk async for chunk in toy.router.generate(request)]


def ids(chunks: Sequence[Chunk]) -> list[int]:
    """The answer's tokens; fails on a gap or a repeat."""
    tokens: list[int] = []
    for chunk in chunks:
        if chunk.token_ids:
            assert chunk.position == len(tokens) + chunks[0].position
        tokens.extend(chunk.token_ids)
    return tokens


def text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)
