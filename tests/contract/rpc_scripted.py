"""Scripted implementations of the rpc contracts: the request says what happens, and the script keeps count."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from headrace.core.errors import BY_CODE, DeadlineExceeded, HeadraceError, InvalidRequest, NotFound, Unauthenticated
from headrace.core.fleet import FleetStatus, Load, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.generation import Chunk, FinishReason, GenerateRequest, ModelCard, Prompt, Tokenized, TokenPrompt
from headrace.core.generation import Usage as UsageCount
from headrace.core.jobs import Abort, Command, Ending, Events, Hello, Outcome, Report, Submit, TokenEvent, Welcome
from headrace.core.layout import KvLayout
from headrace.core.lifecycle import Phase, Transition
from headrace.core.resume import ResumePoint
from headrace.core.route import Candidate, Explanation, Route
from headrace.rpc.contracts import PROTOCOL_VERSION

TOKEN = "fleet-secret"
REF = WorkerRef("decode-0", "0f" * 16)
INFO = WorkerInfo(
    ref=REF,
    role=Role.DECODE,
    address="127.0.0.1:9100",
    model="scripted",
    model_digest=b"\x01" * 16,
    layout=KvLayout(2, 2, 8, 16, "bfloat16"),
    max_model_len=2048,
    num_blocks=64,
    max_jobs=8,
    link="tcp",
    data_address="127.0.0.1:9101",
    protocol=PROTOCOL_VERSION,
    pid=1234,
)
GRACE_S = 2.5
STATUS = FleetStatus(True, "", (WorkerState(INFO, Load(running=1), attached=True),), 1, 2)
EXPLANATION = Explanation(
    request="known",
    model="scripted",
    prompt_tokens=7,
    routes=(Route(REF, None, 4, 1.5, (Candidate(REF, Role.DECODE, 4, 0, 0, 8, 1.5, True, "nearest"),), ("alone",)),),
    transitions=(Transition(Phase.RECEIVED, Phase.ROUTED, 0.25),),
    outcome="stop",
    actual_cached_tokens=4,
    actual_ttft_ms=2.5,
)


class Tally:
    """How many streams began, were heard of, and ended; `until` waits for a number of them."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self._changed = asyncio.Condition()

    async def begin(self) -> None:
        self.begun += 1
        async with self._changed:
            self._changed.notify_all()

    async def end(self) -> None:
        self.ended += 1
        async with self._changed:
            self._changed.notify_all()

    async def until(self, *, begun: int = 0, ended: int = 0) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.begun >= begun and self.ended >= ended)


def failure(code: str) -> HeadraceError:
    return BY_CODE[code]("It was scripted to fail.", remedy="Change the script.", retry_after_s=1.25)


def chunk(position: int, *, last: bool = False) -> Chunk:
    tokens = tuple(range(position + 1))
    return Chunk(
        choice=0,
        position=position,
        text=f"é{position} ",
        token_ids=(position,),
        resume=ResumePoint(-5, b"8 bytes!", tokens, len(tokens)),
        finish_reason=FinishReason.LENGTH if last else None,
        usage=UsageCount(3, position + 1, 2) if last else None,
    )


class ScriptedInference:
    """The model's name is the script: "count", "endless", "silent", "deaf", "patient", "bug" or an error's code,
    with "late:" before it to fail after two chunks."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.requests: list[GenerateRequest] = []
        self.asked = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        await self.tally.begin()
        try:
            async for piece in self._script(request):
                yield piece
        finally:
            await self.tally.end()

    async def _script(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        script = request.model.removeprefix("late:")
        if script != request.model:
            yield chunk(0)
            yield chunk(1)
        match script:
            case "count":
                count = request.sampling.max_tokens or 1
                for position in range(count):
                    yield chunk(position, last=position == count - 1)
            case "endless":
                while True:
                    yield chunk(0)
                    await asyncio.sleep(0)  # as a producer that has to wait for something now and then
            case "silent":
                yield chunk(0)
                await asyncio.Event().wait()
            case "deaf":
                await asyncio.Event().wait()
            case "patient":
                try:
                    async with asyncio.timeout(request.timeout_s):
                        await asyncio.Event().wait()
                except TimeoutError:
                    raise DeadlineExceeded("The scripted time is up.") from None
            case "bug":
                raise KeyError("a private detail")
            case code:
                raise failure(code)

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        self.asked += 1
        if model in BY_CODE:
            raise failure(model)
        assert isinstance(prompt, TokenPrompt)
        return Tokenized(prompt.token_ids, 2048)

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        return " ".join(map(str, token_ids))

    async def list_models(self) -> tuple[ModelCard, ...]:
        return (ModelCard("scripted", 2048, 1_700_000_000),)


class ScriptedFleet:
    async def status(self) -> FleetStatus:
        return STATUS

    async def explain(self, request: str) -> Explanation:
        if request != EXPLANATION.request:
            raise NotFound(f"No request {request} among the last ones.")
        return EXPLANATION

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        if worker != STATUS.workers[0].info.ref.worker:
            raise NotFound(f"No worker {worker} is attached.")
        return replace(STATUS.workers[0], draining=grace_s == GRACE_S)

    async def metrics(self) -> str:
        return "headrace_up 1\n"


class ScriptedWorker:
    """Answers each job with its own tokens, each abort with an ending."""

    def __init__(self) -> None:
        self.tally = Tally()

    async def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        hello = await anext(commands)
        if not isinstance(hello, Hello) or hello.protocol != PROTOCOL_VERSION:
            raise InvalidRequest("A protocol that this worker does not speak.")
        if hello.token != TOKEN:
            raise Unauthenticated("The worker token is wrong.")
        await self.tally.begin()
        try:
            yield Welcome(INFO, Load(credits=8))
            async for command in commands:
                yield self._answer(command)
        finally:
            await self.tally.end()

    def _answer(self, command: Command) -> Events:
        tokens: tuple[TokenEvent, ...] = ()
        endings: tuple[Ending, ...] = ()
        match command:
            case Submit(job):
                tokens = (TokenEvent(job.key, 0, 0, job.tokens),)
            case Abort(key):
                endings = (Ending(key, Outcome.FAILED, failure("transfer_failed")),)
        return Events(tokens, endings, Load(running=1))

    async def metrics(self) -> str:
        return "headrace_up 1\n"
