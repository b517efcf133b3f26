"""Servers that stop while somebody watches their health: gRPC frees a server that has stopped, and nothing may reach
for it after that. A process of its own, as such a reach ends it."""

import asyncio
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rpc_scripted import ScriptedInference

from headrace.core.generation import GenerateRequest, TextPrompt
from headrace.rpc.clients import InferenceClient
from headrace.rpc.server import serve

SERVERS = 40
GRACE_S = 0.05
WITHIN_S = 60.0


async def watched_server(stops: int, apart_s: float) -> None:
    """Stop one as often, at moments that lie `apart_s` from each other, while a stream and a watch stand."""
    server = await serve("127.0.0.1:0", inference=ScriptedInference())
    address = f"127.0.0.1:{server.port}"
    async with InferenceClient(address) as client, grpc.aio.insecure_channel(address) as channel:
        stream = client.generate(GenerateRequest("r-1", "silent", TextPrompt("Hi"), timeout_s=60.0))
        await anext(stream)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        await asyncio.gather(*(server.stop(GRACE_S + apart_s * late) for late in range(stops)))


async def all_at_once(stops: int) -> None:
    await asyncio.gather(*(watched_server(stops, late * 1e-4) for late in range(SERVERS)))


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_server_that_has_stopped_is_left_alone(stops: int) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "faulthandler", __file__, str(stops)), stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            _, said = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, said.decode()[-4000:]


if __name__ == "__main__":
    asyncio.run(all_at_once(int(sys.argv[1])))
