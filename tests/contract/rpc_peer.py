"""A peer to be killed: `server` serves the scripts and prints its port; `client ADDRESS` attaches and stays."""

import asyncio
import sys
from collections.abc import AsyncIterator

from rpc_scripted import TOKEN, ScriptedInference, ScriptedWorker

from headrace.core.jobs import Command, Hello
from headrace.rpc.clients import WorkerClient
from headrace.rpc.contracts import PROTOCOL_VERSION
from headrace.rpc.options import Keepalive
from headrace.rpc.server import serve

KEEPALIVE = Keepalive(interval_s=0.4, timeout_s=0.8)


async def commands() -> AsyncIterator[Command]:
    yield Hello("router-0", TOKEN, PROTOCOL_VERSION)
    await asyncio.Event().wait()


async def run_server() -> None:
    server = await serve("127.0.0.1:0", inference=ScriptedInference(), worker=ScriptedWorker(), keepalive=KEEPALIVE)
    print(f"ready {server.port}", flush=True)
    await asyncio.Event().wait()


async def run_client(address: str) -> None:
    async with WorkerClient(address, keepalive=KEEPALIVE) as client:
        async for _ in client.attach(commands()):
            print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(run_server() if sys.argv[1] == "server" else run_client(sys.argv[2]))
