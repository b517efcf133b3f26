"""A decode worker leaves amid answers: real processes, the real engine in batch-invariant mode on a tiny model."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stdout

import httpx
import pytest
from fixtures.cluster import Cluster, eventually, running
from fixtures.streams import Answer, listen
from fixtures.tiny_checkpoint import Case, make_checkpoint
from test_faults import client_of

from headrace.cli import main

MODEL = "tiny"
STREAMS, TOKENS = 8, 400
# Large enough that answers wait for the engine, and not for clients that are busy reading them.
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "head_dim": 32}
WAYS = ["SIGTERM", "POST", "command"]
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("drain")
    make_checkpoint(Case("llama", "Llama", SIZES), directory / "tiny")
    arguments = (
        *(str(directory / "tiny"), f"--served-model-name={MODEL}", "--dtype=float32", "--batch-invariant"),
        *("--prefill=1", "--decode=2", "--lease-ttl-s=2", "--lease-every-s=0.5", "--drain-s=20"),
        "--kv-cache-memory-bytes=67108864",
    )
    with running(directory, *arguments, link="tcp") as cluster:
        yield cluster


def asked(number: int, first: int) -> dict[str, object]:
    """A mix: greedy and seeded, with logprobs, penalties, a stop string that never comes, fewest tokens. first: of
    prompts that no other test asks, which would draw them to the worker that has them cached."""
    return {
        "model": MODEL,
        "prompt": [3 + (7 * (first + number) + 5 * place) % 300 for place in range(40 + number)],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0.0 if number % 2 else 0.8,
        "seed": number,
        "logprobs": 2,
        "presence_penalty": 0.3 * (number % 3),
        "stop": ["\u0001\u0002\u0003"],
    }


async def answers(cluster: Cluster, first: int, begun: list[asyncio.Event] | None = None) -> list[Answer]:
    async with client_of(cluster) as client, asyncio.timeout(WITHIN_S):
        heard = (
            listen(client, asked(number, first), uuid.uuid4().hex, begun[number] if begun else None)
            for number in range(STREAMS)
        )
        return list(await asyncio.gather(*heard))


def drain(cluster: Cluster, name: str, how: str) -> None:
    if how == "SIGTERM":
        os.kill(cluster.pid(name), signal.SIGTERM)
        return
    if how == "POST":
        answer = httpx.post(f"{cluster.url}/v1/fleet/{name}/drain", json={"grace_s": 20}, timeout=30)
        assert answer.raise_for_status().json()["info"]["ref"]["worker"] == name
        return
    # In this process: one that has to start first may come when all answers have ended.
    with redirect_stdout(io.StringIO()) as told:
        assert main(["drain", name, f"--url={cluster.url}", "--timeout-s=0"]) == 0
    assert f"{name}@" in told.getvalue()


def received(cluster: Cluster, name: str) -> float:
    return cluster.metric("headrace_kv_transfer_bytes_total", direction="received", worker=name)


@pytest.mark.parametrize("how", WAYS)
async def test_answers_leave_with_their_pages_and_stay_the_same(cluster: Cluster, how: str) -> None:
    cluster.wait_ready()
    first = STREAMS * WAYS.index(how)
    alone = await answers(cluster, first)
    assert [answer.error for answer in alone] == [None] * STREAMS
    moved_before, bytes_before = cluster.metric("headrace_relocations_total"), received(cluster, "decode-1")
    before = cluster.incarnation("decode-0")

    begun = [asyncio.Event() for _ in range(STREAMS)]
    asking = asyncio.create_task(answers(cluster, first, begun))
    for event in begun:
        await event.wait()
    await asyncio.to_thread(drain, cluster, "decode-0", how)
    heard = await asking

    assert [answer.error for answer in heard] == [None] * STREAMS
    assert [answer.said for answer in heard] == [answer.said for answer in alone]
    moved = cluster.metric("headrace_relocations_total") - moved_before
    assert moved > 0, "the drain hit no answer"
    assert received(cluster, "decode-1") > bytes_before
    print(f"{how}: {moved:.0f} answers moved with their pages, longest pause {max(a.pause_s for a in heard):.3f} s")
    # It leaves at once, comes back as another, and both are at rest.
    cluster.wait_reborn("decode-0", before)
    cluster.wait_at_rest()
    eventually(lambda: cluster.metric("headrace_pool_checks_total"), lambda count: count > 0)
    for cause in ("lost", "cut", "failed"):
        assert cluster.metric("headrace_attempt_retries_total", cause=cause) == 0


def test_a_worker_that_is_not_there_cannot_be_drained(cluster: Cluster) -> None:
    answer = httpx.post(f"{cluster.url}/v1/fleet/decode-7/drain", json={}, timeout=30)
    assert answer.status_code == 404
    assert "No worker decode-7 is attached." in answer.json()["error"]["message"]
    command = [sys.executable, "-m", "headrace.cli", "drain", "decode-7", f"--url={cluster.url}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "No worker decode-7 is attached." in done.stderr
