"""`headrace up --placement ray`: workers as actors of a real Ray on this machine, killed in every way."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from fixtures.cluster import Cluster, running
from fixtures.living import alive, left_after, name_of

RAY = ("--engine=fake", "--placement=ray", "--lease-ttl-s=2", "--lease-every-s=0.5")
# On an idle machine, where a process that waits for nothing takes as long as it computes. A busy one may take longer.
REFUSED_WITHIN_S = 5.0
REFUSED_WITHIN_S_AT_WORST = 20.0
# Ray's agents look for a Ray that was killed for a minute before they end.
SLOW_TO_NOTICE = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its lines are read as they come, so they have to be whole where Python does not buffer them either."""
    with running(tmp_path_factory.mktemp("ray"), *RAY, environment={"PYTHONUNBUFFERED": "1"}) as cluster:
        yield cluster


def answer(cluster: Cluster) -> str:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 7}
    response = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def printed(cluster: Cluster) -> str:
    """What `up` has said on its terminal since somebody last looked."""
    assert cluster.process.stdout is not None
    try:
        return os.read(cluster.process.stdout.fileno(), 65536).decode()
    except BlockingIOError:
        return ""


def living(family: list[psutil.Process], *, but: tuple[str, ...] = ()) -> list[psutil.Process]:
    """Who of the family is left after a while; those left are killed."""
    try:
        return left_after([each for each in alive(family) if name_of(each) not in but], 30)
    finally:
        for each in alive(family):
            each.kill()


def files_of_ray(family: list[psutil.Process]) -> Path:
    """The directory that `up` made for the Ray that it started."""
    words = [word for each in family if name_of(each) == "gcs_server" for word in each.cmdline()]
    logs = next(Path(word.removeprefix("--log_dir=")) for word in words if word.startswith("--log_dir="))
    assert logs.is_relative_to("/tmp")
    return logs.parents[1]


def test_a_chat_passes_through_workers_that_ray_placed(cluster: Cluster) -> None:
    assert answer(cluster)
    assert cluster.metric("headrace_kv_transfer_bytes_total", direction="received") > 0
    for worker in ("prefill-0", "decode-0"):
        assert psutil.Process(cluster.pid(worker)).parent().cmdline()[0].startswith("ray::ProcessActor")
    assert psutil.Process(cluster.pid("frontend")).ppid() == cluster.process.pid


@pytest.mark.parametrize(("name", "victim"), [("prefill-0", "worker"), ("decode-0", "actor")])
def test_a_killed_worker_or_actor_comes_back_as_a_new_incarnation_and_serves(
    cluster: Cluster, name: str, victim: str
) -> None:
    text, dead, pid = answer(cluster), cluster.incarnation(name), cluster.pid(name)
    printed(cluster)

    os.kill(pid if victim == "worker" else psutil.Process(pid).ppid(), signal.SIGKILL)

    cluster.wait_reborn(name, dead)
    cluster.wait_ready()
    assert answer(cluster) == text
    assert cluster.incarnation(name) != dead
    # Ray's own words on it stay away.
    assert [line.split()[:2] for line in printed(cluster).splitlines()] == [["start", name]]


def test_a_plan_that_asks_for_what_is_not_there_ends_in_a_sentence() -> None:
    command = [sys.executable, "-m", "headrace.cli", "up", *RAY, "--port=0", "--grpc-port=0", "--decode=64"]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < REFUSED_WITHIN_S
    assert time.monotonic() - began < REFUSED_WITHIN_S_AT_WORST
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout.splitlines()[-1] == "ended  nothing is left"
    assert ended.stderr.startswith("headrace: 64 workers need 64 CPUs, and there are ")


def test_ctrl_c_on_the_terminal_stops_everything_quietly(cluster: Cluster) -> None:
    """A terminal's Ctrl-C reaches Ray's processes too. The last of this cluster."""
    family = psutil.Process(cluster.process.pid).children(recursive=True)
    files = files_of_ray(family)
    os.killpg(cluster.process.pid, signal.SIGINT)
    said, _ = cluster.process.communicate(timeout=40)
    assert cluster.process.returncode == 0
    assert [line.split()[0] for line in said.splitlines()][-2:] == ["drain", "ended"]
    log = (cluster.state_file.parent / "up.log").read_text()
    assert [line for line in log.splitlines() if "process.died" not in line] == []
    assert living(family) == []
    assert not files.exists()


def test_a_killed_up_leaves_no_process_of_ray_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "up", *RAY, "--local=1", "--port=0", "--grpc-port=0"]
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert any(line.startswith("ready ") for line in process.stdout)
        family = psutil.Process(process.pid).children(recursive=True)
        files = files_of_ray(family)
        process.kill()
        process.wait()
    assert living(family, but=SLOW_TO_NOTICE) == []
    shutil.rmtree(files)
