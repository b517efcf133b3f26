"""ScriptedWorker: a first-class in-test `WorkerService` without engine or pages, whose every step a test can bend.

By default it behaves as the contract says. Its tokens are a pure function of (seed, position), so an answer is the
same whoever writes it and however often it is begun again.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace

from headrace.core.errors import HeadraceError, Unavailable, WorkerLost
from headrace.core.fleet import Load, Role, WorkerInfo, WorkerRef
from headrace.core.jobs import (
    Abort,
    Activate,
    Busy,
    Command,
    Committed,
    Drain,
    Ending,
    Events,
    Freeze,
    Frozen,
    Granted,
    Hello,
    Job,
    JobKey,
    JobKind,
    Meet,
    Met,
    Outcome,
    Report,
    Submit,
    TokenEvent,
    Welcome,
)
from headrace.core.layout import KvLayout
from headrace.core.logprobs import TokenLogprob
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import UNIT_BLOCKS, Ticket
from headrace.core.waterfall import TransferNote
from headrace.rpc.contracts import PROTOCOL_VERSION

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=4, block_tokens=16, dtype="float32")
MODEL = "toy"
DEADLINE_S = 10.0


def token_at(seed: int, position: int) -> int:
    """A printable byte; a function of seed and position only."""
    return ord("a") + (seed * 31 + position * 7 + position // 5) % 26


def logprob_at(sampling: SamplingParams, token: int, position: int) -> TokenLogprob | None:
    """A function of token, position and how many alternatives are asked for; the first alternative is `x`."""
    if sampling.logprobs is None:
        return None
    top = tuple((ord("x") - place, -0.25 * (place + 1)) for place in range(sampling.logprobs))
    return TokenLogprob(token, -1.0 - position / 8, 3, top)


def prompt_logprobs_of(job: Job) -> tuple[TokenLogprob, ...]:
    """What a worker reports with a request's first token."""
    if job.sampling.prompt_logprobs is None or job.generated:
        return ()
    top = tuple((ord("p") + place, -1.0) for place in range(job.sampling.prompt_logprobs))
    return tuple(TokenLogprob(token, -float(place), place, top) for place, token in enumerate(job.tokens[1:], 1))


def expected(seed: int, count: int) -> list[int]:
    return [token_at(seed, position) for position in range(count)]


def worker_info(name: str, role: Role, incarnation: str = "1", **changes: object) -> WorkerInfo:
    info = WorkerInfo(
        ref=WorkerRef(name, incarnation),
        role=role,
        address=f"{name}:{incarnation}",
        model=MODEL,
        model_digest=b"d" * 16,
        layout=LAYOUT,
        max_model_len=512,
        num_blocks=64,
        max_jobs=8,
        link="loopback",
        data_address=name,
        protocol=PROTOCOL_VERSION,
        pid=1,
    )
    return replace(info, **changes)


class ScriptedWorker:
    """at: what to do when a point is passed: "submit", "grant", "activate", "token N" (before it is sent), "handover",
    "commit", "abort", "meet", "freeze", "export", "import". silent: points at which it says nothing more for that job.
    cached: what it reports as cached tokens. mute: it reports no logprobs, as a worker that does not know of them.
    says_commit: so of commits. draining: what it says of itself; told to drain, it says so. speeds: what its load says
    of prefill and transfers. crowded: the requests that it names. lost_kv: tokens of what it freezes without KV.
    brings: where the pages that it exports are taken in, for requests that never ran on it."""

    def __init__(self, info: WorkerInfo, *, cached: int = 0) -> None:
        self.info = info
        self.cached = cached
        self.commands: list[Command] = []
        self.live: dict[JobKey, Job] = {}
        self.at: dict[str, Callable[[], None]] = {}
        self.silent: set[str] = set()
        self.busy_times = 0
        self.retry_after_s = 0.05
        self.fail_first_with: list[HeadraceError] = []
        self.fail_local_with: HeadraceError | None = None
        self.exposition = "# HELP toy_jobs Jobs.\n# TYPE toy_jobs gauge\ntoy_jobs 3.0\n"
        self.stop_token: tuple[int, int] | None = None
        self.dead = False
        self.draining = False
        self.speeds = (0.0, 0.0)
        self.crowded: tuple[str, ...] = ()
        self.frozen: set[JobKey] = set()
        self.lost_kv = 0
        self.brings: ScriptedWorker | None = None
        self._told: dict[JobKey, int] = {}
        self.mute = False
        self.says_commit = True
        self.hellos = 0
        self._out: asyncio.Queue[Report | HeadraceError] | None = None
        self._changed = asyncio.Condition()
        self._gates: dict[str, asyncio.Event] = {}
        self._passed: dict[str, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[None]] = set()

    # What tests say.

    def gate(self, point: str) -> asyncio.Event:
        """From now on jobs wait at `point` until the returned event is set."""
        return self._gates.setdefault(point, asyncio.Event())

    def die(self) -> None:
        """Break the stream and accept no other."""
        self.dead = True
        self.cut()

    def cut(self) -> None:
        """Break the stream."""
        if self._out is not None:
            self._out.put_nowait(WorkerLost(f"{self.info.ref} died."))

    def send(self, report: Report) -> None:
        assert self._out is not None
        self._out.put_nowait(report)

    def report_load(self, *, draining: bool | None = None) -> None:
        self.draining = self.draining if draining is None else draining
        self.send(Events((), (), self.load, self.draining))

    def fail(self, error: HeadraceError) -> None:
        """It says of its one job that it could not."""
        key, _ = self.live.popitem()
        self.send(Events((), (Ending(key, Outcome.FAILED, error),), self.load, self.draining))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something about this worker to be true."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(condition)

    async def passed(self, point: str, times: int = 1) -> None:
        await self.until(lambda: self._passed[point] >= times)

    @property
    def load(self) -> Load:
        credits = self.info.max_jobs - len(self.live)
        prefill, transfer = self.speeds
        return Load(
            running=len(self.live),
            free_blocks=self.info.num_blocks,
            total_blocks=self.info.num_blocks,
            credits=0 if self.draining else credits,
            prefill_tokens_s=prefill,
            transfer_bytes_s=transfer,
            crowded=self.crowded,
        )

    @property
    def submits(self) -> list[Job]:
        return [command.job for command in self.commands if isinstance(command, Submit)]

    @property
    def meets(self) -> list[WorkerRef]:
        return [command.peer for command in self.commands if isinstance(command, Meet)]

    @property
    def told_of_deaths(self) -> list[JobKey]:
        """Jobs whose peer is dead, as the router says."""
        return [command.key for command in self.commands if isinstance(command, Abort) and command.lost]

    @property
    def aborts(self) -> list[JobKey]:
        return [command.key for command in self.commands if isinstance(command, Abort)]

    # What routers ask.

    async def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        if self.dead:
            raise Unavailable(f"{self.info.ref} cannot be reached.")
        hello = await anext(commands)
        assert isinstance(hello, Hello)
        self.hellos += 1
        self._out = out = asyncio.Queue()
        await self._notify()
        reader = asyncio.create_task(self._read(commands))
        try:
            yield Welcome(self.info, self.load)
            while True:
                report = await out.get()
                if isinstance(report, HeadraceError):
                    raise report
                yield report
        finally:
            self._out = None
            for task in (reader, *self._tasks):
                task.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)
            self.live.clear()
            await self._notify()

    async def metrics(self) -> str:
        return self.exposition

    async def close(self) -> None:
        pass

    # How it works.

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        async for command in commands:
            self.commands.append(command)
            match command:
                case Submit(job):
                    self._spawn(self._serve(job))
                case Activate(key, first_token):
                    if job := self.live.get(key):
                        self._spawn(self._decode(job, first_token))
                case Abort(key):
                    self._spawn(self._abort(key))
                case Meet(peer):
                    self._spawn(self._meet(peer))
                case Freeze(key):
                    self._spawn(self._freeze(key))
                case Drain():
                    self.report_load(draining=True)
            await self._notify()

    async def _serve(self, job: Job) -> None:
        if not await self._pass("submit"):
            return
        if self.busy_times:
            self.busy_times -= 1
            self.send(Busy(job.key, self.retry_after_s))
            return
        if self.draining and job.kind is not JobKind.EXPORT:
            self.send(Busy(job.key, self.retry_after_s))
            return
        self.live[job.key] = job
        match job.kind:
            case JobKind.DECODE | JobKind.IMPORT:
                if await self._pass("grant"):
                    self.send(Granted(job.key, self._ticket(job), 0))
            case JobKind.PREFILL:
                await self._prefill(job)
            case JobKind.EXPORT:
                await self._export(job)
            case JobKind.LOCAL if self.fail_local_with is not None:
                await self._end(job, Outcome.FAILED, self.fail_local_with)
            case JobKind.LOCAL:
                await self._write(job, job.generated)

    async def _prefill(self, job: Job) -> None:
        if self.fail_first_with:
            await self._end(job, Outcome.FAILED, self.fail_first_with.pop(0))
            return
        if not await self._token(job, job.generated):
            return
        if await self._pass("handover"):
            await self._end(job, Outcome.HANDED_OVER, note=self.note)

    async def _export(self, job: Job) -> None:
        here = self.brings or any(key.request == job.key.request for key in self.frozen)
        assert here, "nothing of the request stands still here"
        if self.fail_first_with:
            await self._end(job, Outcome.FAILED, self.fail_first_with.pop(0))
        elif await self._pass("export"):
            if self.brings is not None:
                await self.brings.imported(job.key)
            await self._end(job, Outcome.HANDED_OVER, note=self.note)

    async def imported(self, key: JobKey, error: HeadraceError | None = None) -> None:
        """All pages of an import job are here, or will never be."""
        job = self.live.get(key)
        if await self._pass("import") and job is not None:
            await self._end(job, Outcome.HANDED_OVER if error is None else Outcome.FAILED, error, self.note)

    async def _freeze(self, key: JobKey) -> None:
        """The job tells no more tokens. All it told, and was told, have KV but the last."""
        self.frozen.add(key)
        if await self._pass("freeze") and (job := self.live.get(key)):
            self.send(Frozen(key, job.prompt_len + self._told[key] - 1 - self.lost_kv))

    async def _decode(self, job: Job, first_token: int) -> None:
        if not await self._pass("activate"):
            return
        assert first_token == self._pick(job, job.generated)
        self._told[job.key] = job.generated + 1
        if self.fail_first_with:
            await self._end(job, Outcome.FAILED, self.fail_first_with.pop(0))
            return
        if await self._pass("commit"):
            if self.says_commit:
                self.send(Committed(job.key, self.note))
            await self._write(job, job.generated + 1)

    @property
    def note(self) -> TransferNote:
        """What it says of each transfer."""
        return TransferNote(self.info.ref, payload_bytes=1 << 20, messages=4, seconds=0.5, exposed_s=0.125)

    async def _write(self, job: Job, position: int) -> None:
        limit = job.sampling.max_tokens
        assert limit is not None
        while position < limit:
            if not await self._token(job, position):
                return
            if self._pick(job, position) == 0:
                await self._end(job, Outcome.STOP)
                return
            position += 1
        await self._end(job, Outcome.LENGTH)

    async def _token(self, job: Job, position: int) -> bool:
        if not await self._pass(f"token {position}") or job.key not in self.live or job.key in self.frozen:
            return False
        self._told[job.key] = position + 1
        cached = self.cached if position == job.generated else 0
        token = self._pick(job, position)
        logprob = logprob_at(job.sampling, token, position)
        event = TokenEvent(
            job.key,
            0,
            position,
            (token,),
            cached,
            () if logprob is None or self.mute else (logprob,),
            prompt_logprobs_of(job) if position == job.generated and not self.mute else (),
        )
        self.send(Events((event,), (), self.load, self.draining))
        return True

    def _pick(self, job: Job, position: int) -> int:
        if self.stop_token is not None and self.stop_token[0] == position:
            return self.stop_token[1]
        assert job.sampling.seed is not None
        return token_at(job.sampling.seed, position)

    async def _meet(self, peer: WorkerRef) -> None:
        if await self._pass("meet"):
            self.send(Met(peer, "", 1.0))

    async def _abort(self, key: JobKey) -> None:
        if await self._pass("abort") and (job := self.live.get(key)):
            await self._end(job, Outcome.ABORTED)

    async def _end(
        self, job: Job, outcome: Outcome, error: HeadraceError | None = None, note: TransferNote | None = None
    ) -> None:
        if self.live.pop(job.key, None) is not None and self._out is not None:
            self.send(Events((), (Ending(job.key, outcome, error, note),), self.load, self.draining))
        await self._notify()

    async def _pass(self, point: str) -> bool:
        """Whether the job goes on past `point`."""
        self._passed[point] += 1
        await self._notify()
        if trap := self.at.get(point):
            trap()
        if gate := self._gates.get(point):
            await gate.wait()
        await asyncio.sleep(0)
        return point not in self.silent and self._out is not None

    def _ticket(self, job: Job) -> Ticket:
        assert job.peer is not None
        return Ticket(
            transfer=b"t" * 16,
            secret=b"s" * 16,
            job=job.key.request,
            attempt=job.key.attempt,
            source=job.peer,
            target=self.info.ref,
            model_digest=self.info.model_digest,
            layout=self.info.layout,
            first_block=0,
            block_count=-(-len(job.tokens) // 16),
            unit_blocks=UNIT_BLOCKS,
            link=self.info.link,
            address=self.info.data_address,
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
