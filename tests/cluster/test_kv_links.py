"""Pools of one deployment pair up by the link that they name."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.cluster import eventually
from fixtures.redis_server import RedisServer
from test_faults import ANSWER_WITHIN_S, MODEL, Heard, body, listen

COUNT = 24
READY_WITHIN_S = 50.0
DEPLOYMENT = """
redis_url: {redis}
model: {model}
frontend: {{port: 0, grpc_port: 0}}
worker: {{engine: fake}}
pools:
  near-prefill: {{role: prefill, link: nccl}}
  near-decode: {{role: decode, link: nccl}}
  far-prefill: {{role: prefill, link: tcp}}
  far-decode: {{role: decode, link: tcp}}
"""
POOLS = ("near-prefill", "near-decode", "far-prefill", "far-decode")


@pytest.mark.timeout(120)
def test_pools_pair_up_by_the_link_that_they_name(tmp_path: Path, redis_server: RedisServer) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(DEPLOYMENT.format(redis=redis_server.url, model=MODEL))
    with services(file, tmp_path) as url, httpx.Client(base_url=url, timeout=30) as client:
        eventually(lambda: attached(client), lambda found: found == set(POOLS), READY_WITHIN_S)
        heard = asyncio.run(at_once(url))
        assert all(answer.answered for answer in heard)
        told = [client.get(f"/v1/requests/{answer.request_id}/explain").json() for answer in heard]
        pairs = {(route["prefill"]["worker"], route["decode"]["worker"]) for one in told for route in one["routes"]}
        # Both pairs were used, and never a prefill worker of one with a decode worker of the other.
        assert pairs == {("near-prefill", "near-decode"), ("far-prefill", "far-decode")}


async def at_once(url: str) -> list[Heard]:
    """So many that one pair alone would be the worse choice."""
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S) as client:
        return await asyncio.gather(*(listen(client, body(seed)) for seed in range(COUNT)))


def attached(client: httpx.Client) -> set[str]:
    return {
        worker["info"]["ref"]["worker"] for worker in client.get("/v1/fleet").json()["workers"] if worker["attached"]
    }


@contextmanager
def services(file: Path, directory: Path) -> Iterator[str]:
    """The frontend and one worker of each pool, from one configuration file. Yields the frontend's URL."""
    with ExitStack() as closing:
        front = closing.enter_context(process(["frontend"], file, directory))
        for pool in POOLS:
            closing.enter_context(process(["worker", f"--pool={pool}", f"--name={pool}"], file, directory))
        assert front.stdout is not None
        said: dict[str, Any] = json.loads(front.stdout.readline())
        yield said["url"]


@contextmanager
def process(command: Sequence[str], file: Path, directory: Path) -> Iterator[subprocess.Popen[str]]:
    with (directory / f"{command[-1]}.log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *command, f"--config={file}"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield child
        child.terminate()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.communicate()
