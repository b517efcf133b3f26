"""One suite for the rpc contracts: the same in-process and through a real server and client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import pytest
from rpc_scripted import (
    EXPLANATION,
    GRACE_S,
    INFO,
    STATUS,
    TOKEN,
    ScriptedFleet,
    ScriptedInference,
    ScriptedWorker,
    chunk,
    failure,
)

from headrace.core.errors import (
    ERRORS,
    DeadlineExceeded,
    HeadraceError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
)
from headrace.core.fleet import Load
from headrace.core.generation import ChatPrompt, Chunk, GenerateRequest, Message, TextPrompt, TokenPrompt
from headrace.core.jobs import Abort, Command, Events, Hello, Job, JobKey, JobKind, Report, Submit, Welcome
from headrace.core.sampling import SamplingParams
from headrace.rpc.clients import FleetClient, InferenceClient, WorkerClient
from headrace.rpc.contracts import PROTOCOL_VERSION, Fleet, Inference, WorkerService
from headrace.rpc.server import serve

WAYS = pytest.mark.parametrize("way", ["in-process", "grpc"])
HELLO = Hello("router-0", TOKEN, PROTOCOL_VERSION)
SOON_S = 5.0


class Stage:
    """The three services as a caller sees them, and the scripts behind them."""

    def __init__(self) -> None:
        self.inference_script = ScriptedInference()
        self.worker_script = ScriptedWorker()
        self.inference: Inference = self.inference_script
        self.worker: WorkerService = self.worker_script
        self.fleet: Fleet = ScriptedFleet()


@pytest.fixture
async def stage(way: str) -> AsyncIterator[Stage]:
    stage = Stage()
    if way == "in-process":
        yield stage
        return
    server = await serve("127.0.0.1:0", inference=stage.inference, fleet=stage.fleet, worker=stage.worker)
    address = f"127.0.0.1:{server.port}"
    async with InferenceClient(address) as inference, FleetClient(address) as fleet, WorkerClient(address) as worker:
        stage.inference, stage.fleet, stage.worker = inference, fleet, worker
        yield stage
    await server.stop(SOON_S)


def request(model: str, *, max_tokens: int = 3, timeout_s: float = 60.0) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=9, stop=("\n",), stop_token_ids=(2,))
    messages = (Message("system", "Ωmega"), Message("user", "Hi"))
    return GenerateRequest("r-1", model, ChatPrompt(messages), sampling, timeout_s, "salt", b"resume")


def closable(stream: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    return cast("AsyncGenerator[Any, None]", stream)


async def gathered(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [piece async for piece in stream]


@WAYS
async def test_a_stream_arrives_whole_and_in_order(stage: Stage) -> None:
    pieces = await gathered(stage.inference.generate(request("count")))
    assert pieces == [chunk(0), chunk(1), chunk(2, last=True)]
    assert stage.inference_script.tally.ended == 1


@WAYS
async def test_the_request_arrives_as_it_was_sent(stage: Stage) -> None:
    sent = request("count")
    await gathered(stage.inference.generate(sent))
    assert stage.inference_script.requests == [sent]


@WAYS
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("late", [False, True])
async def test_errors_are_the_same_error(stage: Stage, kind: type[HeadraceError], late: bool) -> None:
    stream = stage.inference.generate(request(("late:" if late else "") + kind.kind.code))
    if late:
        assert [await anext(stream), await anext(stream)] == [chunk(0), chunk(1)]
    with pytest.raises(HeadraceError) as caught:
        await anext(stream)
    expected = failure(kind.kind.code)
    assert type(caught.value) is kind
    assert caught.value.message == expected.message
    assert caught.value.remedy == expected.remedy
    assert caught.value.retry_after_s == expected.retry_after_s


@WAYS
@pytest.mark.parametrize("kind", ERRORS)
async def test_unary_errors_are_the_same_error(stage: Stage, kind: type[HeadraceError]) -> None:
    with pytest.raises(HeadraceError) as caught:
        await stage.inference.tokenize(kind.kind.code, TokenPrompt((1,)))
    assert type(caught.value) is kind
    assert caught.value.retry_after_s == 1.25
    assert stage.inference_script.asked == 1


@WAYS
@pytest.mark.parametrize("script", ["endless", "silent"])
async def test_closing_early_reaches_the_implementation(stage: Stage, script: str) -> None:
    stream = closable(stage.inference.generate(request(script)))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(SOON_S):
        await stage.inference_script.tally.until(ended=1)


@WAYS
async def test_cancelling_the_reader_reaches_the_implementation(stage: Stage) -> None:
    reader = asyncio.create_task(gathered(stage.inference.generate(request("deaf"))))
    async with asyncio.timeout(SOON_S):
        await stage.inference_script.tally.until(begun=1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await stage.inference_script.tally.until(ended=1)


@WAYS
async def test_a_hundred_streams_cancelled_at_once_all_end(stage: Stage) -> None:
    scripts = ["endless", "silent", "deaf", "count"]
    readers = [
        asyncio.create_task(gathered(stage.inference.generate(request(scripts[n % 4], max_tokens=50))))
        for n in range(100)
    ]
    async with asyncio.timeout(30):
        await stage.inference_script.tally.until(begun=100)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await stage.inference_script.tally.until(ended=100)
    assert await gathered(stage.inference.generate(request("count", max_tokens=1))) == [chunk(0, last=True)]


@WAYS
async def test_time_runs_out_with_the_implementations_own_word(stage: Stage) -> None:
    with pytest.raises(DeadlineExceeded, match="The scripted time is up"):
        await gathered(stage.inference.generate(request("patient", timeout_s=0.05)))


@WAYS
async def test_a_prompt_of_100_000_tokens(stage: Stage) -> None:
    prompt = TokenPrompt(tuple(range(100_000)))
    tokenized = await stage.inference.tokenize("scripted", prompt)
    assert tokenized.token_ids == prompt.token_ids
    sent = GenerateRequest("long", "count", prompt)
    await gathered(stage.inference.generate(sent))
    assert stage.inference_script.requests == [sent]


@WAYS
async def test_a_prompt_of_four_megabytes_of_text(stage: Stage) -> None:
    sent = GenerateRequest("long", "count", TextPrompt("é" * 2_000_000))
    await gathered(stage.inference.generate(sent))
    assert stage.inference_script.requests == [sent]


@WAYS
async def test_the_other_calls(stage: Stage) -> None:
    assert await stage.inference.detokenize("scripted", (1, 2)) == "1 2"
    assert [card.id for card in await stage.inference.list_models()] == ["scripted"]
    assert await stage.fleet.status() == STATUS
    assert await stage.fleet.explain("known") == EXPLANATION
    assert await stage.fleet.metrics() == await stage.worker.metrics() == "headrace_up 1\n"
    with pytest.raises(NotFound, match="No request lost"):
        await stage.fleet.explain("lost")
    name = STATUS.workers[0].info.ref.worker
    assert await stage.fleet.drain(name) == STATUS.workers[0]
    assert (await stage.fleet.drain(name, GRACE_S)).draining
    with pytest.raises(NotFound, match="No worker lost"):
        await stage.fleet.drain("lost")


class Orders:
    """Commands given one by one; ends when told to."""

    def __init__(self, *commands: Command) -> None:
        self._queue: asyncio.Queue[Command | BaseException] = asyncio.Queue()
        self.give(*commands)

    def give(self, *commands: Command | BaseException) -> None:
        for command in commands:
            self._queue.put_nowait(command)

    def __aiter__(self) -> AsyncIterator[Command]:
        return self

    async def __anext__(self) -> Command:
        command = await self._queue.get()
        if isinstance(command, BaseException):
            raise command
        return command


def job(number: int, tokens: tuple[int, ...] = (1, 2, 3)) -> Job:
    sampling = SamplingParams(seed=1, max_tokens=4)
    return Job(JobKey(f"r-{number}", 1), JobKind.LOCAL, tokens, len(tokens), sampling, b"root", (b"hash",), 9.5)


def events(report: Report | None) -> Events:
    assert isinstance(report, Events)
    return report


@WAYS
async def test_an_attachment_from_hello_to_its_end(stage: Stage) -> None:
    orders = Orders(HELLO)
    async with contextlib.aclosing(closable(stage.worker.attach(orders))) as reports, asyncio.timeout(SOON_S):
        # 1. The first report is the welcome.
        assert await anext(reports) == Welcome(INFO, Load(credits=8))
        # 2. Each command is answered while the stream stands.
        for number in range(3):
            orders.give(Submit(job(number)))
            assert events(await anext(reports)).tokens[0].key == JobKey(f"r-{number}", 1)
        # 3. A failed job's error travels.
        orders.give(Abort(JobKey("r-1", 1)))
        error = events(await anext(reports)).endings[0].error
        assert error is not None
        assert error.kind.code == "transfer_failed"
        assert error.retry_after_s == 1.25
        # 4. The end of the commands ends the stream.
        orders.give(StopAsyncIteration())
        assert [report async for report in reports] == []
        assert stage.worker_script.tally.ended == 1


@WAYS
async def test_a_job_of_100_000_tokens(stage: Stage) -> None:
    tokens = tuple(range(100_000))
    orders = Orders(HELLO, Submit(job(0, tokens)))
    async with contextlib.aclosing(closable(stage.worker.attach(orders))) as reports, asyncio.timeout(SOON_S):
        await anext(reports)
        assert events(await anext(reports)).tokens[0].token_ids == tokens


@WAYS
async def test_closing_an_attachment_reaches_the_worker(stage: Stage) -> None:
    reports = closable(stage.worker.attach(Orders(HELLO)))
    async with asyncio.timeout(SOON_S):
        await anext(reports)
        await reports.aclose()
        await stage.worker_script.tally.until(ended=1)


@WAYS
@pytest.mark.parametrize(
    ("hello", "kind"),
    [
        (Hello("router-0", "wrong", PROTOCOL_VERSION), Unauthenticated),
        (Hello("router-0", TOKEN, 99), InvalidRequest),
        (Abort(JobKey("r", 0)), InvalidRequest),
    ],
)
async def test_a_worker_refuses_whom_it_does_not_know(stage: Stage, hello: Command, kind: type[HeadraceError]) -> None:
    with pytest.raises(kind):
        await anext(stage.worker.attach(Orders(hello)))


@WAYS
async def test_failing_commands_end_the_attachment_with_their_error(stage: Stage) -> None:
    orders = Orders(HELLO)
    reports = closable(stage.worker.attach(orders))
    async with asyncio.timeout(SOON_S):
        await anext(reports)
        orders.give(LookupError("the caller's own mistake"))
        with pytest.raises(LookupError, match="own mistake"):
            await anext(reports)
        await stage.worker_script.tally.until(ended=1)
