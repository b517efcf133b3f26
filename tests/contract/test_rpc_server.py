"""What only the gRPC server and clients have: health, reflection, stopping, retries, defects, keepalive."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_scripted import TOKEN, ScriptedFleet, ScriptedInference, ScriptedWorker, chunk
from structlog.testing import capture_logs

from headrace.core.errors import DeadlineExceeded, InternalError, StartupError, Unavailable, WorkerLost
from headrace.core.generation import Chunk, GenerateRequest, TextPrompt, TokenPrompt
from headrace.core.jobs import Command, Hello, Welcome
from headrace.rpc.clients import InferenceClient, WorkerClient
from headrace.rpc.contracts import PROTOCOL_VERSION
from headrace.rpc.options import Keepalive
from headrace.rpc.routers import door_to
from headrace.rpc.server import Server, serve
from headrace.rpc.v1 import inference_pb2, inference_pb2_grpc

SOON_S = 5.0
INFERENCE = "headrace.rpc.v1.Inference"


@pytest.fixture
def script() -> ScriptedInference:
    return ScriptedInference()


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker()


@pytest.fixture
async def server(script: ScriptedInference, worker: ScriptedWorker) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1:0", inference=script, worker=worker)
    yield server
    await server.stop(0)


@pytest.fixture
def address(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
async def client(address: str) -> AsyncIterator[InferenceClient]:
    async with InferenceClient(address) as client:
        yield client


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


def request(model: str, timeout_s: float = 60.0) -> GenerateRequest:
    return GenerateRequest("r-1", model, TextPrompt("Hi"), timeout_s=timeout_s)


def inference_stub(channel: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]


async def hello_then_silence() -> AsyncIterator[Command]:
    yield Hello("router-0", TOKEN, PROTOCOL_VERSION)
    await asyncio.Event().wait()


async def gathered(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [piece async for piece in stream]


async def test_a_door_to_a_router_is_one_connection(script: ScriptedInference) -> None:
    """So a call fails only if the watch's connection does: two would come back at two times."""
    server = await serve("127.0.0.1:0", inference=script, fleet=ScriptedFleet())
    door = door_to(f"127.0.0.1:{server.port}")
    try:
        await server.set_ready(True)
        async with aclosing(door.serving()) as words:
            assert await anext(words)
            assert await door.inference.list_models()
            assert await door.fleet.status()
            mine = psutil.Process().net_connections("tcp")
            assert len([one for one in mine if one.raddr and one.raddr.port == server.port]) == 1
    finally:
        await door.close()
        await server.stop(0)


# Starting


async def test_a_port_in_use_is_one_sentence_with_the_remedy(server: Server, script: ScriptedInference) -> None:
    with pytest.raises(StartupError, match=r"the port is in use\. Choose another") as caught:
        await serve(f"127.0.0.1:{server.port}", inference=script)
    assert str(server.port) in caught.value.message


async def test_a_port_that_another_program_listens_on_is_in_use(script: ScriptedInference) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(StartupError, match="the port is in use"):
        await serve(f"127.0.0.1:{other.getsockname()[1]}", inference=script)


@pytest.mark.parametrize("address", ["nowhere.invalid:0", "127.0.0.1", "127.0.0.1:http!", "127.0.0.1:99999"])
async def test_an_address_that_is_none_is_refused(address: str, script: ScriptedInference) -> None:
    with pytest.raises(StartupError, match="Cannot listen on"):
        await serve(address, inference=script)


# Health and reflection


async def test_health_follows_set_ready_for_the_server_and_each_service(
    server: Server, channel: grpc.aio.Channel
) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)

    async def states() -> set[int]:
        names = ("", INFERENCE, "headrace.rpc.v1.Worker")
        answers = [await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=SOON_S) for name in names]
        return {answer.status for answer in answers}

    assert await states() == {health_pb2.HealthCheckResponse.NOT_SERVING}
    await server.set_ready(True)
    assert await states() == {health_pb2.HealthCheckResponse.SERVING}
    await server.set_ready(False)
    assert await states() == {health_pb2.HealthCheckResponse.NOT_SERVING}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health.Check(health_pb2.HealthCheckRequest(service="headrace.rpc.v1.Fleet"), timeout=SOON_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_server_is_live_whether_ready_or_not(server: Server, channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for ready in (False, True, False):
        await server.set_ready(ready)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="live"), timeout=SOON_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_that_knows_only_the_reflected_schema_generates(
    script: ScriptedInference, channel: grpc.aio.Channel
) -> None:
    pool = await reflected(channel, INFERENCE)
    method = pool.FindServiceByName(INFERENCE).methods_by_name["Generate"]
    message: Any = message_factory.GetMessageClass(method.input_type)()
    message.prompt.text = "Hi"
    message.model = "count"
    message.sampling.max_tokens = 3
    generate: Any = channel.unary_stream(
        f"/{INFERENCE}/Generate",
        request_serializer=lambda value: value.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    call = generate(message, timeout=SOON_S)
    answers = [answer async for answer in call]
    assert [list(answer.token_ids) for answer in answers] == [[0], [1], [2]]
    assert answers[2].usage.completion_tokens == 3
    # The server chose an id, and told it.
    assert dict(await call.initial_metadata())["x-request-id"] == script.requests[0].id != ""


async def reflected(channel: grpc.aio.Channel, service: str) -> descriptor_pool.DescriptorPool:
    """A pool with the file of `service` and all that it needs, from the server alone."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
    (answer,) = [answer async for answer in stub.ServerReflectionInfo(iter([asked]), timeout=SOON_S)]
    pool = descriptor_pool.DescriptorPool()
    for data in answer.file_descriptor_response.file_descriptor_proto:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    return pool


# Requests


async def test_the_server_learns_how_long_the_caller_will_wait(
    script: ScriptedInference, channel: grpc.aio.Channel
) -> None:
    stub = inference_stub(channel)
    message = inference_pb2.GenerateRequest(model="count", prompt=inference_pb2.Prompt(text="Hi"))
    assert [answer async for answer in stub.Generate(message, timeout=7)]
    # gRPC rounds the deadline on its way.
    assert 5 < script.requests[0].timeout_s < 8


async def test_a_malformed_request_is_refused_with_a_sentence(channel: grpc.aio.Channel) -> None:
    stub = inference_stub(channel)
    with pytest.raises(grpc.aio.AioRpcError, match="lacks its prompt") as caught:
        await stub.Generate(inference_pb2.GenerateRequest(), timeout=SOON_S).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_implementation_that_forgets_the_time_is_ended(
    script: ScriptedInference, client: InferenceClient
) -> None:
    with pytest.raises(DeadlineExceeded):
        await gathered(client.generate(request("deaf", timeout_s=0.1)))
    async with asyncio.timeout(SOON_S):
        await script.tally.until(ended=1)


async def test_a_defect_is_logged_once_and_keeps_its_details(client: InferenceClient) -> None:
    with capture_logs() as lines, pytest.raises(InternalError) as caught:
        await gathered(client.generate(request("late:bug")))
    failures = [line for line in lines if line["event"] == "call.failed"]
    assert len(failures) == 1
    assert failures[0]["exc_info"]
    assert "private" not in str(caught.value)


# Retries


class Stumbling(inference_pb2_grpc.InferenceServicer):
    """A foreign server that is unavailable twice."""

    def __init__(self) -> None:
        self.asked = 0

    async def Tokenize(self, message: Any, context: Any) -> inference_pb2.Tokenized:
        self.asked += 1
        if self.asked <= 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return inference_pb2.Tokenized(token_ids=message.prompt.tokens.token_ids)

    async def Generate(self, message: Any, context: Any) -> None:
        self.asked += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")


@pytest.fixture
async def stumbling() -> AsyncIterator[tuple[Stumbling, InferenceClient]]:
    server, servicer = grpc.aio.server(), Stumbling()
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with InferenceClient(f"127.0.0.1:{port}") as client:
        yield servicer, client
    await server.stop(None)


async def test_calls_that_change_nothing_are_tried_again(stumbling: tuple[Stumbling, InferenceClient]) -> None:
    servicer, client = stumbling
    assert (await client.tokenize("m", TokenPrompt((1, 2)))).token_ids == (1, 2)
    assert servicer.asked == 3


async def test_a_generation_is_never_tried_again(stumbling: tuple[Stumbling, InferenceClient]) -> None:
    servicer, client = stumbling
    with pytest.raises(Unavailable, match="not yet"):
        await gathered(client.generate(request("count")))
    assert servicer.asked == 1


async def test_a_client_outlives_its_server(script: ScriptedInference) -> None:
    # 1. It works.
    first = await serve("127.0.0.1:0", inference=script)
    address = f"127.0.0.1:{first.port}"
    async with InferenceClient(address) as client:
        assert await client.list_models()
        # 2. The server goes; the client says so.
        await first.stop(0)
        with pytest.raises(Unavailable):
            await gathered(client.generate(request("count")))
        # 3. It comes back where it was; the client finds it.
        second = await serve(address, inference=script)
        try:
            async with asyncio.timeout(SOON_S):
                while True:
                    try:
                        assert await gathered(client.generate(request("count"))) == [chunk(0, last=True)]
                        break
                    except Unavailable:
                        continue
        finally:
            await second.stop(0)


async def test_closing_a_client_ends_its_streams_and_later_calls(address: str) -> None:
    client = InferenceClient(address)
    stream = client.generate(request("silent"))
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await client.close()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(Unavailable, match="closed"):
            await waiting
        with pytest.raises(Unavailable, match="closed"):
            await client.list_models()
        with pytest.raises(Unavailable, match="closed"):
            await anext(client.generate(request("count")))


# Stopping


async def test_stopping_lets_a_stream_finish_in_its_grace(
    server: Server, script: ScriptedInference, client: InferenceClient
) -> None:
    stream = client.generate(request("patient", timeout_s=0.3))
    reader = asyncio.create_task(gathered(stream))
    async with asyncio.timeout(SOON_S):
        await script.tally.until(begun=1)
        await server.stop(grace_s=SOON_S)
        with pytest.raises(DeadlineExceeded, match="The scripted time is up"):
            await reader


async def test_stopping_ends_what_outlasts_the_grace_with_a_word(
    server: Server, script: ScriptedInference, worker: ScriptedWorker, client: InferenceClient, address: str
) -> None:
    async with WorkerClient(address) as worker_client, asyncio.timeout(SOON_S):
        # 1. Streams of both services, a health watch, all idle.
        stream = client.generate(request("silent"))
        await anext(stream)
        reports = worker_client.attach(hello_then_silence())
        assert isinstance(await anext(reports), Welcome)
        async with grpc.aio.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE), timeout=SOON_S)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            # 2. The server stops, and every implementation is closed when it has.
            await server.stop(grace_s=0.1)
            assert (script.tally.ended, worker.tally.ended) == (1, 1)
        # 3. Each caller is told.
        with pytest.raises(Unavailable, match="The server is stopping"):
            await anext(stream)
        with pytest.raises(WorkerLost, match="The server is stopping"):
            await anext(reports)


async def test_health_says_not_serving_before_the_server_stops(server: Server, channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    await server.set_ready(True)
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=SOON_S)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    async with asyncio.timeout(SOON_S):
        stopping = asyncio.create_task(server.stop(grace_s=0.1))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


# Keepalive


async def test_an_idle_attachment_stands_through_many_pings(worker: ScriptedWorker) -> None:
    keepalive = Keepalive(interval_s=0.05, timeout_s=0.5)
    server = await serve("127.0.0.1:0", worker=worker, keepalive=keepalive)
    async with WorkerClient(f"127.0.0.1:{server.port}", keepalive=keepalive) as client:
        reports = client.attach(hello_then_silence())
        await anext(reports)
        waiting = asyncio.ensure_future(anext(reports))
        done, _ = await asyncio.wait({waiting}, timeout=1.5)
        assert not done
        assert worker.tally.ended == 0
        waiting.cancel()
        await asyncio.wait({waiting})
    await server.stop(0)
