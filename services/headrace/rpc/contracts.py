"""The three services as Python sees them, in-process or over gRPC alike.

The router implements `Inference` and `Fleet`, the worker `WorkerService`; `rpc.server` exposes any
implementation, `rpc.clients` is one over a channel. Errors are `HeadraceError` on both sides of the wire.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from headrace.core.fleet import FleetStatus, WorkerState
from headrace.core.generation import Chunk, GenerateRequest, ModelCard, Prompt, Tokenized
from headrace.core.jobs import Command, Report
from headrace.core.route import Explanation

# The newest and the oldest version of the Worker service that this program speaks. Version 1 knew of no range and no
# weights, and takes only its like. Since version 3 there are jobs that import: a worker that does not know of them
# would end the router's stream over one.
PROTOCOL_VERSION = 3
OLDEST_PROTOCOL = 2
IMPORTS_SINCE = 3


def agreed(newest: int, oldest: int) -> int | None:
    """The version that this program and a peer that speaks `oldest` to `newest` use with each other; None for none.

    oldest: 0 for a peer that speaks no other than its newest.
    """
    version = min(newest, PROTOCOL_VERSION)
    return version if version >= max(oldest or newest, OLDEST_PROTOCOL) else None


def spoken(newest: int = PROTOCOL_VERSION, oldest: int = OLDEST_PROTOCOL) -> str:
    """The versions that somebody speaks, in words; by default those of this program."""
    return f"protocol {newest}" if oldest in {0, newest} else f"protocols {oldest} to {newest}"


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

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        """Have a worker leave: it takes no more jobs, its running ones move to others within `grace_s` seconds (0: what
        the worker was configured with), then its process ends. Returns at once, with the worker as it is then.
        worker: its name, or name@incarnation, of which the beginning is enough. Raises NotFound if it is not attached.
        """
        ...

    async def metrics(self) -> str:
        """The router's Prometheus exposition merged with every attached worker's, labelled by worker."""
        ...


class WorkerService(Protocol):
    """A worker, as routers see it."""

    def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        """The standing stream of one router. The first command is Hello, the first report Welcome. When
        `commands` ends or the iterator is closed, every job of this router is aborted.
        Raises Unauthenticated for a wrong token, InvalidRequest for a protocol it does not speak and for a router whose
        model has other weights."""
        ...

    async def metrics(self) -> str:
        """The worker's Prometheus exposition."""
        ...
