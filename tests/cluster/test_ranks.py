"""A worker of two ranks in a real cluster: it answers, and after the death of a rank its next incarnation does."""

from pathlib import Path

import httpx
import psutil
from fixtures.cluster import Cluster, eventually, running
from fixtures.living import children_of, lives
from fixtures.tiny_checkpoint import Case, make_checkpoint

WITHIN_S = 5.0


def ask(cluster: Cluster) -> str:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def ranks_of(pid: int) -> list[psutil.Process]:
    return children_of(pid, "tensor_parallel.rank")


def test_a_worker_of_two_ranks_answers_and_outlives_a_rank(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(Case("llama", "Llama"), tmp_path / "tiny")
    flags = ("--served-model-name=tiny", "--local=1", "--tensor-parallel-size=2")
    with running(tmp_path, str(checkpoint.directory), *flags, link="tcp") as cluster:
        expected = ask(cluster)
        pid, incarnation = cluster.pid("local-0"), cluster.incarnation("local-0")
        (rank,) = ranks_of(pid)
        rank.kill()
        eventually(lambda: lives(pid), lambda alive: not alive, WITHIN_S)
        cluster.wait_reborn("local-0", incarnation)
        cluster.wait_ready()
        assert ask(cluster) == expected
        cluster.wait_at_rest()
