"""Links other than ucx between real workers: same answers, same endings under kills; pools pair up by their link."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.cluster import Cluster, eventually, running
from fixtures.redis_server import RedisServer
from test_faults import ANSWER_WITHIN_S, MODEL, Heard, body, client_of, expected, kill_during, listen

LINKS = ("tcp", "nccl")
COUNT = 12
READY_WITHIN_S = 50.0
LIGHT = ("--engine=fake", "--fake-step-ms=10", "--lease-ttl-s=2", "--lease-every-s=0.5")


@pytest.fixture(scope="module")
def over_ucx(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with running(tmp_path_factory.mktemp("ucx"), "--link=ucx", "--engine=fake") as cluster:
        return asyncio.run(expected(cluster, COUNT))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("link", LINKS)
async def test_answers_kills_and_leaving_clients(tmp_path: Path, link: str, over_ucx: list[str]) -> None:
    with running(tmp_path, f"--link={link}", *LIGHT) as cluster:
        # 1. Pages move over this link, and the answers are those over ucx.
        assert {worker["info"]["link"] for worker in cluster.fleet()["workers"]} == {link}
        assert await expected(cluster, COUNT) == over_ucx
        assert cluster.metric("headrace_kv_transfer_bytes_total", direction="received") > 0
        # 2. Clients that leave take nothing with them.
        await leave_at_random(cluster)
        cluster.wait_at_rest()
        assert cluster.metric("headrace_kv_slabs", state="quarantined") == 0
        # 3. Either worker dies: every request ends in its answer or in one clear error.
        for dead in ("prefill-0", "decode-0"):
            incarnation = cluster.incarnation(dead)
            for text, heard in zip(over_ucx, await kill_during(cluster, dead, COUNT), strict=True):
                assert heard.text == text if heard.answered else heard.error and text.startswith(heard.text)
            cluster.wait_reborn(dead, incarnation)
            cluster.wait_ready()
        # 4. The next requests succeed with pages that move again, and everything is at rest.
        assert await expected(cluster, COUNT) == over_ucx
        cluster.wait_at_rest()
        eventually(lambda: cluster.metric("headrace_pool_checks_total"), lambda count: count > 0)


async def leave_at_random(cluster: Cluster) -> None:
    """16 clients, every other one of which leaves at a random moment; those that stay are answered."""
    chance = random.Random(3)

    async def leave(client: httpx.AsyncClient, seed: int) -> None:
        async with client.stream("POST", "/v1/completions", json=body(seed, max_tokens=512)) as response:
            lines = response.aiter_lines()
            for _ in range(chance.choice([0, 1, 2, 5, 20])):
                await anext(lines)

    async with client_of(cluster) as client, asyncio.timeout(ANSWER_WITHIN_S), asyncio.TaskGroup() as group:
        stayed = [group.create_task(listen(client, body(seed))) for seed in range(100, 116, 2)]
        for seed in range(101, 116, 2):
            group.create_task(leave(client, seed))
    assert all(task.result().answered for task in stayed)


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
        heard = asyncio.run(at_once(url, 2 * COUNT))
        assert all(answer.answered for answer in heard)
        told = [client.get(f"/v1/requests/{answer.request_id}/explain").json() for answer in heard]
        pairs = {(route["prefill"]["worker"], route["decode"]["worker"]) for one in told for route in one["routes"]}
        # Both pairs were used, and never a prefill worker of one with a decode worker of the other.
        assert pairs == {("near-prefill", "near-decode"), ("far-prefill", "far-decode")}


async def at_once(url: str, count: int) -> list[Heard]:
    """So many that one pair alone would be the worse choice."""
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S) as client:
        return await asyncio.gather(*(listen(client, body(seed)) for seed in range(count)))


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
