"""What worker tests need: fake engines, a carrier that waits for the test, and a router's end of a stream."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.blocks import chain, root_hash
from headrace.core.errors import TransferFailed
from headrace.core.fleet import Load, Role, WorkerRef
from headrace.core.jobs import (
    Busy,
    Command,
    Committed,
    Ending,
    Events,
    Frozen,
    Granted,
    Hello,
    Job,
    JobKey,
    JobKind,
    Met,
    Outcome,
    Report,
    Submit,
    Welcome,
)
from headrace.core.pages import PagePort
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import Ticket
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import Engine
from headrace.engine.fake import build_fake_engine
from headrace.engine.options import EngineOptions
from headrace.modelfiles.files import ModelConfig, ModelFiles
from headrace.rpc.contracts import PROTOCOL_VERSION, WorkerService
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import CarrierHealth, MakeCarrier, Side, Told, TransferReport, TransferStatus
from headrace.worker.identity import Identity
from headrace.worker.service import Worker

DEADLINE_S = 10.0
CONFIG = ModelConfig("llama", 1000, 64, 128, 2, 4, 2, 8, 1e-5, 10000.0, 512, True)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 8 * 4


def fake_engine(
    *,
    blocks: int = 64,
    page: int = 16,
    max_jobs: int = 8,
    weights: bytes = b"w" * 16,
    batched_tokens: int = 64,
    stop_after: int | None = None,
    before_step: Callable[[], None] | None = None,
) -> Engine:
    files = ModelFiles("tiny", CONFIG, (), Path("tokenizer.json"), None, "", "", False, (2,), weights)
    options = EngineOptions(
        dtype="float32",
        max_num_seqs=max_jobs,
        max_num_batched_tokens=max(batched_tokens, max_jobs),
        block_size=page,
        kv_cache_memory_bytes=blocks * BLOCK_BYTES * page // 16,
    )
    vocabulary = Vocabulary(CONFIG.vocab_size, frozenset({2}))
    return build_fake_engine(files, vocabulary, options, stop_after=stop_after, before_step=before_step)


def job(
    name: str,
    kind: JobKind = JobKind.LOCAL,
    *,
    prompt: int = 40,
    max_tokens: int = 8,
    attempt: int = 1,
    timeout_s: float = 60.0,
    salt: int = 0,
    peer: WorkerRef | None = None,
    ticket: Ticket | None = None,
) -> Job:
    """A job over `prompt` tokens that depend on `salt` alone."""
    tokens = tuple(3 + (salt * 131 + 7 * i + i * i) % 900 for i in range(prompt))
    root = root_hash(b"m")
    return Job(
        key=JobKey(name, attempt),
        kind=kind,
        tokens=tokens,
        prompt_len=prompt,
        sampling=SamplingParams(temperature=0.0, seed=1, max_tokens=max_tokens),
        root=root,
        hashes=chain(root, tokens),
        timeout_s=timeout_s,
        peer=peer,
        ticket=ticket,
    )


class Gate:
    """Lets an engine's batches through, or holds its thread in front of the next one."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        self._passes = 0

    def __call__(self) -> None:
        if self._passes:
            self._passes -= 1
            return
        self._reached.set()
        assert self._open.wait(DEADLINE_S), "the test left the gate shut"

    def shut(self) -> None:
        self.shut_after(0)

    def shut_after(self, batches: int) -> None:
        """Let that many batches through, then hold."""
        self._passes = batches
        self._open.clear()
        self._reached.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Return once a batch is held. All before it has been delivered to the event loop by then."""
        assert await asyncio.to_thread(self._reached.wait, DEADLINE_S), "no batch came"


@dataclass(slots=True)
class Leg:
    """One side of a transfer as the waiting carrier keeps it."""

    ticket: Ticket
    blocks: tuple[int, ...]
    done: bool = False


class WaitingCarrier:
    """A Carrier for one worker that moves nothing: every report waits for the test to make it. health: what the test
    says it is."""

    def __init__(self, pages: PagePort, report: Callable[[TransferReport], None], slabs: int) -> None:
        self.address = "waiting:1"
        self.health = CarrierHealth(slabs, 0, 0)
        self.received: dict[bytes, Leg] = {}
        self.sent: dict[bytes, Leg] = {}
        self.cancelled: list[bytes] = []
        self.lost: list[bytes] = []
        self.met: dict[str, Told] = {}
        self.closed = False
        self.answers_cancel = False
        self._report = report

    def start(self) -> None:
        """It has no thread."""

    def close(self, timeout_s: float, /) -> None:
        self.closed = True

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        assert len(blocks) == ticket.block_count
        self.received[ticket.transfer] = Leg(ticket, blocks)

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        self.sent[ticket.transfer] = Leg(ticket, ())

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        leg = self.sent[transfer]
        assert blocks[: len(leg.blocks)] == leg.blocks, "blocks of a transfer only grow"
        leg.blocks = blocks

    def meet(self, address: str, told: Told) -> None:
        self.met[address] = told

    def cancel(self, transfer: bytes, *, lost: bool = False) -> None:
        if lost:
            self.lost.append(transfer)
        leg = self.received.get(transfer) or self.sent[transfer]
        if leg.done:
            return  # the report is on its way
        self.cancelled.append(transfer)
        if self.answers_cancel:
            self.close_transfer(transfer, TransferStatus.CANCELLED)

    def close_transfer(self, transfer: bytes, status: TransferStatus, verified: int = 0) -> None:
        """Make the one report of a transfer."""
        side = Side.RECEIVER if transfer in self.received else Side.SENDER
        leg = (self.received if side is Side.RECEIVER else self.sent)[transfer]
        assert not leg.done, "one report a transfer"
        leg.done = True
        error = TransferFailed("Made to fail.") if status is TransferStatus.FAILED else None
        self._report(TransferReport(transfer, side, status, verified, 0, 0.0, error))


@dataclass(slots=True)
class Heard:
    """All that one router heard, merged."""

    welcome: Welcome | None = None
    granted: dict[JobKey, Granted] = field(default_factory=dict)
    committed: dict[JobKey, Committed] = field(default_factory=dict)
    busy: dict[JobKey, Busy] = field(default_factory=dict)
    frozen: dict[JobKey, int] = field(default_factory=dict)
    tokens: dict[JobKey, list[int]] = field(default_factory=lambda: defaultdict(list))
    cached: dict[JobKey, int] = field(default_factory=dict)
    endings: dict[JobKey, list[Ending]] = field(default_factory=lambda: defaultdict(list))
    met: list[Met] = field(default_factory=list)
    load: Load | None = None
    draining: bool = False


class Router:
    """One router's end of an attachment: says commands, keeps what it hears, waits for what must come."""

    def __init__(
        self, worker: WorkerService, name: str = "router", token: str = "", *, first: Command | None = None
    ) -> None:
        self.heard = Heard()
        self._worker = worker
        self._commands: asyncio.Queue[Command | None] = asyncio.Queue()
        self._news = asyncio.Condition()
        self.say(first or Hello(name, token, PROTOCOL_VERSION))

    def say(self, command: Command) -> None:
        self._commands.put_nowait(command)

    def submit(self, job: Job) -> JobKey:
        self.say(Submit(job))
        return job.key

    def hang_up(self) -> None:
        """End the command stream."""
        self._commands.put_nowait(None)

    async def until(self, holds: Callable[[Heard], object]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(lambda: holds(self.heard))

    async def ended(self, key: JobKey) -> Ending:
        await self.until(lambda heard: heard.endings[key])
        return self.heard.endings[key][0]

    async def grant(self, key: JobKey) -> Ticket:
        await self.until(lambda heard: key in heard.granted)
        return self.heard.granted[key].ticket

    async def listen(self) -> None:
        reports = self._worker.attach(self.said())
        try:
            async for report in reports:
                async with self._news:
                    self._hear(report)
                    self._news.notify_all()
        finally:
            await reports.aclose()  # type: ignore[attr-defined]

    async def said(self) -> AsyncIterator[Command]:
        while (command := await self._commands.get()) is not None:
            yield command

    def _hear(self, report: Report) -> None:
        heard = self.heard
        match report:
            case Welcome():
                heard.welcome, heard.load = report, report.load
            case Met():
                heard.met.append(report)
            case Granted():
                assert report.key not in heard.granted
                heard.granted[report.key] = report
            case Committed():
                assert report.key in heard.granted
                assert report.key not in heard.committed
                heard.committed[report.key] = report
            case Busy():
                heard.busy[report.key] = report
            case Frozen(key, tokens):
                assert key not in heard.frozen
                heard.frozen[key] = tokens
            case Events():
                for event in report.tokens:
                    assert not heard.endings[event.key], "tokens after the ending"
                    assert event.key not in heard.frozen, "tokens of what stands still"
                    heard.cached.setdefault(event.key, event.cached_tokens)
                    heard.tokens[event.key] += event.token_ids
                for ending in report.endings:
                    heard.endings[ending.key].append(ending)
                heard.load, heard.draining = report.load, report.draining


@asynccontextmanager
async def attached(worker: WorkerService, name: str = "router", token: str = "") -> AsyncIterator[Router]:
    """A router that listens until the block ends."""
    router = Router(worker, name, token)
    listening = asyncio.create_task(router.listen())
    try:
        await router.until(lambda heard: heard.welcome)
        yield router
    finally:
        listening.cancel()
        await asyncio.wait({listening})


@dataclass(slots=True)
class Serving:
    """A worker in service and its parts."""

    worker: Worker
    engine: Engine
    carrier: WaitingCarrier | None
    metrics: WorkerMetrics
    published: list[tuple[tuple[bytes, ...], tuple[bytes, ...]]]

    async def quiet(self) -> None:
        """Wait until nothing is held here, then hold I2: every page is free. (`served` recounts at the end.)"""
        async with asyncio.timeout(DEADLINE_S):
            await self.worker.drained()
        async with attached(self.worker, "observer") as observer:
            total = self.engine.info.num_blocks
            await observer.until(lambda heard: heard.load is not None and heard.load.free_blocks == total)


@asynccontextmanager
async def served(
    engine: Engine,
    *,
    name: str = "worker",
    role: Role = Role.LOCAL,
    make_carrier: MakeCarrier | None = None,
    link: str = "waiting",
    token: str = "",
    metrics: WorkerMetrics | None = None,
    grace_s: float = 0.0,
    stall_s: float = 60.0,
    slabs: int = 64,
) -> AsyncIterator[Serving]:
    """A worker from start to stop; its pool is recounted when it has stopped. slabs: of the carrier that waits."""
    made: list[WaitingCarrier] = []

    def waiting(pages: PagePort, report: Callable[[TransferReport], None]) -> WaitingCarrier:
        made.append(WaitingCarrier(pages, report, slabs))
        return made[0]

    published: list[tuple[tuple[bytes, ...], tuple[bytes, ...]]] = []
    metrics = metrics or WorkerMetrics()
    worker = Worker(
        engine,
        make_carrier or waiting,
        Identity(WorkerRef(name, f"{name}-life-1"), role, "tiny", link),
        metrics=metrics,
        publish=lambda stored, evicted: published.append((stored, evicted)),
        token=token,
        check_after_s=0.01,
        stall_s=stall_s,
    )
    await worker.start()
    worker.announce("127.0.0.1:1")
    try:
        yield Serving(worker, engine, made[0] if made else None, metrics, published)
    finally:
        await worker.stop(grace_s)
    engine.check()


def only(ending: Ending, outcome: Outcome) -> None:
    assert ending.outcome is outcome, ending.error
