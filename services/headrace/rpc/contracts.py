"""The three services as Python sees them, in-process or over gRPC alike.

The router implements `Inference` and `Fleet`, the worker `WorkerService`; `rpc.server` exposes any
implementation, `rpc.clients` is one over a channel. Errors are `HeadraceError` on both sides of the wire.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from headrace.core.fleet import FleetStatus
from headrace.core.generation import Chunk, GenerateRequest, ModelCard, Prompt, Tokenized
from headrace.core.jobs import Command, Report
from headrace.core.route import Explanation

PROTOCOL_VERSION = 2


class Inference(Protocol):
    """Public generation service."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Chunks until one has a finish_reason. Closing the iterator early aborts the request everywhere.
        Raises HeadraceError, before or after the first chunk."""
        ...

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized: ...

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str: ...

    async def list_models(self) -> tuple[ModelCard, ...]: ...


class Fleet(Protocol):
    """What operators ask a router."""

    async def status(self) -> FleetStatus: ...

    async def explain(self, request: str) -> Explanation:
        """The route and life of one of the last 1,000 requests. Raises NotFound."""
        ...

    async def metrics(self) -> str:
        """The router's Prometheus exposition merged with every attached worker's, labelled by worker."""
        ...


class WorkerService(Protocol):
    """A worker, as routers see it."""

    def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        """The standing stream of one router. The first command is Hello, the first report Welcome. When
        `commands` ends or the iterator is closed, every job of this router is aborted.
        Raises Unauthenticated for a wrong token, InvalidRequest for a protocol it does not speak."""
        ...

    async def metrics(self) -> str:
        """The worker's Prometheus exposition."""
        ...
