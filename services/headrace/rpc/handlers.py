"""gRPC handlers: each decodes, calls an implementation of a contract, and encodes. They decide nothing.

Responses are written, not yielded: a cancelled handler then closes the implementation's iterator at once, where
a generator given to gRPC would wait for the garbage collector.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar, cast
from uuid import uuid4

import grpc

from headrace.core.admin import Admin
from headrace.core.generation import GenerateRequest
from headrace.core.jobs import Command
from headrace.rpc.bearer import shown_key
from headrace.rpc.calls import Calls, Context
from headrace.rpc.codec.attach import decode_command, encode_report
from headrace.rpc.codec.fleet import encode_state, encode_status
from headrace.rpc.codec.generation import (
    decode_prompt,
    decode_request,
    encode_chunk,
    encode_models,
    encode_tokenized,
)
from headrace.rpc.codec.route import encode_explanation
from headrace.rpc.codec.values import grace, token_ids
from headrace.rpc.contracts import Fleet, Inference, WorkerService
from headrace.rpc.v1 import (
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

REQUEST_ID_KEY = "x-request-id"

T = TypeVar("T")


class InferenceHandlers(inference_pb2_grpc.InferenceServicer):
    def __init__(self, service: Inference, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    async def Generate(self, message: inference_pb2.GenerateRequest, context: Context) -> None:
        async with self._calls.answering("Inference.Generate", context):
            request = _received(message, context.time_remaining())
            await context.send_initial_metadata(((REQUEST_ID_KEY, request.id),))
            async with _closing(self._service.generate(request)) as chunks:
                async for chunk in chunks:
                    await context.write(encode_chunk(chunk))

    async def Tokenize(self, message: inference_pb2.TokenizeRequest, context: Context) -> inference_pb2.Tokenized:
        async with self._calls.answering("Inference.Tokenize", context):
            prompt = decode_prompt(message.prompt)
            return encode_tokenized(await self._service.tokenize(message.model, prompt))

    async def Detokenize(self, message: inference_pb2.DetokenizeRequest, context: Context) -> inference_pb2.Detokenized:
        async with self._calls.answering("Inference.Detokenize", context):
            text = await self._service.detokenize(message.model, token_ids(message.token_ids))
            return inference_pb2.Detokenized(text=text)

    async def ListModels(self, message: inference_pb2.ListModelsRequest, context: Context) -> inference_pb2.ModelList:
        async with self._calls.answering("Inference.ListModels", context):
            return encode_models(await self._service.list_models())


class FleetHandlers(fleet_pb2_grpc.FleetServicer):
    """admin: who may change the fleet. Its looks are free: gateways ask for it on behalf of everybody."""

    def __init__(self, service: Fleet, calls: Calls, *, admin: Admin) -> None:
        self._service = service
        self._calls = calls
        self._admin = admin

    async def Status(self, message: fleet_pb2.StatusRequest, context: Context) -> fleet_pb2.FleetStatus:
        async with self._calls.answering("Fleet.Status", context):
            return encode_status(await self._service.status())

    async def Explain(self, message: fleet_pb2.ExplainRequest, context: Context) -> fleet_pb2.Explanation:
        async with self._calls.answering("Fleet.Explain", context):
            return encode_explanation(await self._service.explain(message.request))

    async def Drain(self, message: fleet_pb2.DrainRequest, context: Context) -> fleet_pb2.WorkerState:
        async with self._calls.answering("Fleet.Drain", context):
            self._admin.require_to_change(shown_key(context.invocation_metadata() or ()))
            return encode_state(await self._service.drain(message.worker, grace(message.grace_s)))

    async def Metrics(self, message: fleet_pb2.MetricsRequest, context: Context) -> fleet_pb2.MetricsText:
        async with self._calls.answering("Fleet.Metrics", context):
            return fleet_pb2.MetricsText(exposition=await self._service.metrics())


class WorkerHandlers(worker_pb2_grpc.WorkerServicer):
    def __init__(self, service: WorkerService, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    async def Attach(self, messages: AsyncIterator[worker_pb2.Command], context: Context) -> None:
        async with (
            self._calls.answering("Worker.Attach", context),
            _closing(self._service.attach(_Commands(context))) as reports,
        ):
            async for report in reports:
                await context.write(encode_report(report))

    async def Metrics(self, message: fleet_pb2.MetricsRequest, context: Context) -> fleet_pb2.MetricsText:
        async with self._calls.answering("Worker.Metrics", context):
            return fleet_pb2.MetricsText(exposition=await self._service.metrics())


class _Commands(AsyncIterator[Command]):
    """The commands of one attachment. No generator, so there is nothing that must be closed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __anext__(self) -> Command:
        message = await self._context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise StopAsyncIteration
        return decode_command(message)


def _received(message: inference_pb2.GenerateRequest, remaining_s: float | None) -> GenerateRequest:
    """The request, with an id, and with no more time than the caller will wait."""
    message.id = message.id or uuid4().hex
    request = decode_request(message)
    return request if remaining_s is None else replace(request, timeout_s=min(request.timeout_s, remaining_s))


def _closing(stream: AsyncIterator[T]) -> aclosing[AsyncGenerator[T, None]]:
    # The contracts promise an iterator that can be closed; their type cannot say so.
    return aclosing(cast("AsyncGenerator[T, None]", stream))
