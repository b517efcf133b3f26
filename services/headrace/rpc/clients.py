"""Clients: the three contracts over a channel, with deadlines, retries where they are harmless, and our errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.core.errors import InternalError, InvalidRequest, RouterLost, Unavailable, WorkerLost
from headrace.core.fleet import FleetStatus, WorkerState
from headrace.core.generation import Chunk, GenerateRequest, ModelCard, Prompt, Tokenized
from headrace.core.jobs import Command, Report
from headrace.core.route import Explanation
from headrace.rpc.bearer import showing
from headrace.rpc.codec.attach import decode_report, encode_command
from headrace.rpc.codec.fleet import decode_state, decode_status
from headrace.rpc.codec.generation import (
    decode_chunk,
    decode_models,
    decode_tokenized,
    encode_detokenize,
    encode_request,
    encode_tokenize,
)
from headrace.rpc.codec.route import decode_explanation, encode_explain
from headrace.rpc.errors import from_call
from headrace.rpc.hang_up import hang_up
from headrace.rpc.options import Keepalive, client_options
from headrace.rpc.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2, inference_pb2_grpc, worker_pb2_grpc

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_KEEPALIVE = Keepalive()
# The server is the first to say that a request's time is up; the call's own deadline comes so much later.
_DEADLINE_GRACE_S = 2.0

T = TypeVar("T")


def connect(address: str, keepalive: Keepalive = DEFAULT_KEEPALIVE) -> grpc.aio.Channel:
    """A channel to `host:port`; it connects at the first call, and again whenever it must."""
    return grpc.aio.insecure_channel(address, options=client_options(keepalive))


class _Client:
    """A channel, its stub, and the deadline of its unary calls. Close it, or use it as a context manager.

    channel: one to `address` that several clients share; whoever closes it closes it for all. Default: its own.
    """

    _stub_class: ClassVar[Any]
    # What it means that the server cannot be reached, or that nothing comes from it any more.
    _lost: ClassVar[type[Unavailable]] = RouterLost

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        keepalive: Keepalive = DEFAULT_KEEPALIVE,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = channel or connect(address, keepalive)
        self._stub: Any = self._stub_class(self._channel)

    async def close(self) -> None:
        """Close the connection. Calls in progress fail with Unavailable."""
        await self._channel.close(None)

    async def serving(self) -> AsyncGenerator[bool, None]:
        """Whether the server takes calls: as it is now, then at every change. Raises HeadraceError once that is out
        of reach; a silent server is one, after the time that keepalive gives it."""
        with self._speaking():
            call = health_pb2_grpc.HealthStub(self._channel).Watch(health_pb2.HealthCheckRequest())
        try:
            while (serving := await self._next(call, _serving)) is not None:
                yield serving
        finally:
            hang_up(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, method: Callable[..., Any], message: object, decode: Callable[[Any], T]) -> T:
        with self._speaking():
            return decode(await method(message, timeout=self._timeout_s))

    async def _next(self, call: Any, decode: Callable[[Any], T]) -> T | None:
        """The next message of a stream, None at its end."""
        with self._speaking():
            message = await call.read()
            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return None
            return decode(message)

    def _speaking(self) -> AbstractContextManager[None]:
        return _speaking_to(self.address, self._lost)


class InferenceClient(_Client):
    """`contracts.Inference` of the server at `address`."""

    _stub_class = inference_pb2_grpc.InferenceStub

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        message = encode_request(request)
        with self._speaking():
            call = self._stub.Generate(message, timeout=request.timeout_s + _DEADLINE_GRACE_S)
        try:
            while (chunk := await self._next(call, decode_chunk)) is not None:
                yield chunk
        finally:
            hang_up(call)

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        return await self._ask(self._stub.Tokenize, encode_tokenize(model, prompt), decode_tokenized)

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        message = encode_detokenize(model, token_ids)
        return await self._ask(self._stub.Detokenize, message, lambda answer: str(answer.text))

    async def list_models(self) -> tuple[ModelCard, ...]:
        return await self._ask(self._stub.ListModels, inference_pb2.ListModelsRequest(), decode_models)


class FleetClient(_Client):
    """`contracts.Fleet` of the router at `address`."""

    _stub_class = fleet_pb2_grpc.FleetStub

    def __init__(self, address: str, *, admin_key: str = "", channel: grpc.aio.Channel | None = None) -> None:
        """admin_key: shown where the router asks for one. Raises nothing."""
        super().__init__(address, channel=channel)
        self._admin_key = admin_key

    async def status(self) -> FleetStatus:
        return await self._ask(self._stub.Status, fleet_pb2.StatusRequest(), decode_status)

    async def explain(self, request: str) -> Explanation:
        return await self._ask(self._stub.Explain, encode_explain(request), decode_explanation)

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        message = fleet_pb2.DrainRequest(worker=worker, grace_s=grace_s)
        call = partial(self._stub.Drain, metadata=showing(self._admin_key))
        return await self._ask(call, message, decode_state)

    async def metrics(self) -> str:
        return await self._ask(self._stub.Metrics, fleet_pb2.MetricsRequest(), _exposition)


class WorkerClient(_Client):
    """`contracts.WorkerService` of the worker at `address`."""

    _stub_class = worker_pb2_grpc.WorkerStub
    _lost = Unavailable

    async def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        """Also raises WorkerLost: no welcome within the client's timeout, or the stream broke."""
        with self._speaking():
            call = self._stub.Attach()
        sender = asyncio.create_task(_send(call, commands))
        try:
            report = await self._welcome(call, sender)
            while report is not None:
                yield report
                report = await self._report(call, sender)
        finally:
            hang_up(call)
            sender.cancel()
            await asyncio.wait((sender,))

    async def metrics(self) -> str:
        return await self._ask(self._stub.Metrics, fleet_pb2.MetricsRequest(), _exposition)

    async def _welcome(self, call: Any, sender: "asyncio.Task[None]") -> Report | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._report(call, sender)
        except TimeoutError as error:
            raise WorkerLost(f"{self.address} sent no welcome within {self._timeout_s:g} s.") from error

    async def _report(self, call: Any, sender: "asyncio.Task[None]") -> Report | None:
        try:
            return await self._next(call, decode_report)
        except Unavailable as error:
            if sender.done():
                sender.result()  # The caller's commands failed, and the stream with them.
            raise error if isinstance(error, WorkerLost) else WorkerLost(error.message, remedy=error.remedy) from error


async def _send(call: Any, commands: AsyncIterator[Command]) -> None:
    """Write the commands, then say that there will be none. A broken stream is the reader's to report."""
    try:
        async for command in commands:
            message = encode_command(command)
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return
        await call.done_writing()
    except Exception:
        call.cancel()
        raise


def _serving(message: health_pb2.HealthCheckResponse) -> bool:
    return bool(message.status == health_pb2.HealthCheckResponse.SERVING)


def _exposition(message: fleet_pb2.MetricsText) -> str:
    return message.exposition


@contextmanager
def _speaking_to(address: str, lost: type[Unavailable]) -> Iterator[None]:
    """Turn what gRPC, a closed channel or an unreadable answer raise into our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_call(error, address, lost) from error
    except grpc.aio.UsageError as error:
        raise lost(f"The connection to {address} is closed.") from error
    except InvalidRequest as error:
        raise InternalError(
            f"{address} answered with what this version cannot read: {error.message}",
            remedy="Run versions that know each other.",
        ) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC also raises this in a reader whose channel was closed by another task.
        raise lost(f"The connection to {address} was closed.") from None
