"""Before the first request: workers have met, and listen where they were told to."""

from pathlib import Path

import httpx
import psutil
import pytest
from fixtures.cluster import Cluster, eventually, running
from fixtures.ports import free_ports

COUNT = 32
MEETINGS = "headrace_kv_meetings_total"


def listening(cluster: Cluster, name: str) -> set[int]:
    sockets = psutil.Process(cluster.pid(name)).net_connections("tcp")
    return {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}


def free_range() -> range:
    """Ports one behind the other of which most are free."""
    first = free_ports(1)[0]
    return range(first, first + COUNT)


@pytest.mark.parametrize("link", ["tcp", "ucx"])
def test_workers_have_met_and_listen_in_their_range(tmp_path: Path, link: str) -> None:
    ports = free_range()
    flags = ("--engine=fake", "--prefill=1", "--decode=2", f"--data-port-range={ports[0]}-{ports[-1]}")
    with running(tmp_path, *flags, link=link) as cluster:
        eventually(lambda: cluster.metric(MEETINGS, outcome="met"), lambda met: met == 2)
        assert cluster.metric(MEETINGS, outcome="failed") == 0
        for name in ("prefill-0", "decode-0", "decode-1"):
            grpc = int(cluster.state[name]["address"].rpartition(":")[2])
            assert listening(cluster, name) - {grpc} <= set(ports)
        body = {"model": "smollm2-135m", "prompt": "Hello there", "max_tokens": 4}
        answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
