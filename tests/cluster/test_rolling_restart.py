"""Two prefill and two decode workers are restarted one after the other under sixteen streams: real processes, and the
fake engine, whose pages prove their contents."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from fixtures.cluster import Cluster, running
from fixtures.streams import Answer, listen
from test_faults import body, client_of

STREAMS = 16
WORKERS = ("decode-0", "prefill-0", "decode-1", "prefill-1")
ARGUMENTS = (
    *("--engine=fake", "--fake-step-ms=10", "--prefill=2", "--decode=2"),
    *("--lease-ttl-s=2", "--lease-every-s=0.5", "--drain-s=20"),
    *("--max-num-seqs=20", "--max-num-batched-tokens=20"),  # computing pages again is dear, so that they go along
)


def restart(cluster: Cluster, name: str) -> None:
    """One as Kubernetes asks it to leave, the next as an operator does; its supervisor starts it again."""
    before = cluster.incarnation(name)
    if name.endswith("0"):
        os.kill(cluster.pid(name), signal.SIGTERM)
    else:
        command = [sys.executable, "-m", "headrace.cli", "drain", name, f"--url={cluster.url}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{name}@{before[:8]} has left." in done.stdout
    cluster.wait_reborn(name, before)


async def ask_on(cluster: Cluster, seed: int, over: asyncio.Event, begun: asyncio.Event) -> list[Answer]:
    """The same question again and again until the restarts are over."""
    answers: list[Answer] = []
    async with client_of(cluster) as client:
        while not (answers and over.is_set()):
            answers.append(await listen(client, body(seed, max_tokens=150), uuid.uuid4().hex, begun))
    return answers


async def test_a_rolling_restart_loses_and_alters_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running(tmp_path, *ARGUMENTS, link="tcp") as cluster:
        over, begun = asyncio.Event(), [asyncio.Event() for _ in range(STREAMS)]
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            asking = [group.create_task(ask_on(cluster, seed, over, begun[seed])) for seed in range(STREAMS)]
            for event in begun:
                await event.wait()
            for name in WORKERS:
                await asyncio.to_thread(restart, cluster, name)
            over.set()
        answers = [task.result() for task in asking]
        # 1. None failed, and each says what it says undisturbed.
        quiet = asyncio.Event()
        quiet.set()
        undisturbed = await asyncio.gather(*(ask_on(cluster, seed, quiet, begun[seed]) for seed in range(STREAMS)))
        for heard, (alone,) in zip(answers, undisturbed, strict=True):
            assert [answer.error for answer in heard] == [None] * len(heard)
            assert [answer.said for answer in heard] == [alone.said] * len(heard)
        # 2. Answers went on with their pages; nobody was taken for dead, and nothing counted as a failure.
        assert cluster.metric("headrace_relocations_total") > 0
        for cause in ("lost", "cut", "failed"):
            assert cluster.metric("headrace_attempt_retries_total", cause=cause) == 0
        cluster.wait_at_rest()
        # 3. What it cost.
        longest = max(answer.pause_s for heard in answers for answer in heard)
        figures = {
            "answers": sum(map(len, answers)),
            "longest_pause_s": round(longest, 3),
            "with_pages": cluster.metric("headrace_relocations_total"),
            "computed_again": cluster.metric("headrace_attempt_retries_total", cause="moved"),
        }
        record_property("rolling restart", figures)
        print(f"rolling restart of {len(WORKERS)} workers under {STREAMS} streams: {figures}")
        assert longest < 15
