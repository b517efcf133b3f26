"""A real gateway on a free port of this machine, over scripted services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from scripted_inference import MODEL, ScriptedFleet, ScriptedInference

from headrace.gateway.app import build_app
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass
class Gateway:
    inference: ScriptedInference
    fleet: ScriptedFleet
    server: GatewayServer
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@asynccontextmanager
async def running(inference: ScriptedInference | None = None, **options: Any) -> AsyncIterator[Gateway]:
    """Starts on entry; on exit cuts off what still runs."""
    inference = inference or ScriptedInference()
    fleet = ScriptedFleet(inference)
    server = GatewayServer(build_app(inference, fleet, GatewayOptions(**options)), "127.0.0.1", 0)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=20.0) as http:
            yield Gateway(inference, fleet, server, http)
    finally:
        await server.stop(0)


def chat(**fields: Any) -> dict[str, Any]:
    """A small chat body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Capital of France?"}], **fields}


def completion(**fields: Any) -> dict[str, Any]:
    """A small completion body."""
    return {"model": MODEL, "prompt": "Once", **fields}
