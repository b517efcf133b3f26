"""`headrace placement`: a file's pools in a real Ray, through a placement that dies, shrinks a pool and is stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from fixtures.cluster import eventually
from fixtures.ray_head import CPUS, RayHead

READY_WITHIN_S = 50.0
STOP_WITHIN_S = 30.0


class Deployment:
    """A configuration file, and the services that it starts."""

    def __init__(self, directory: Path, head: RayHead, redis_url: str, fleet: str) -> None:
        self.file = directory / "headrace.yaml"
        self._directory = directory
        self._head = head
        self._fleet = fleet
        self._shared = {"redis_url": redis_url, "fleet": fleet, "cache_dir": str(directory / "cache")}
        self.url = ""

    def write(self, address: str, **pools: dict[str, object]) -> None:
        document = {
            **self._shared,
            "worker": {"engine": "fake", "host": "0.0.0.0", "port": 9100, "lease_ttl_s": 2, "lease_every_s": 0.5},
            "frontend": {"port": 0, "grpc_port": 0},
            "placement": {"ray_address": address},
            "pools": pools,
        }
        self.file.write_text(yaml.safe_dump(document))

    @contextmanager
    def service(self, name: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
        """One service until the block ends, and what it said when it was ready."""
        with (self._directory / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                command(name, self.file),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._head.environment},
            )
        assert process.stdout is not None
        with process.stdout:
            try:
                line = process.stdout.readline()
                assert line, (self._directory / f"{name}.log").read_text()
                yield process, json.loads(line)
            finally:
                process.terminate()
                process.wait(timeout=STOP_WITHIN_S)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Attached workers by name."""
        fleet = httpx.get(f"{self.url}/v1/fleet", timeout=10).raise_for_status().json()
        return {each["info"]["ref"]["worker"]: each["info"] for each in fleet["workers"] if each["attached"]}

    def processes(self) -> set[int]:
        """The workers that run, attached or not, whoever is their parent by now."""
        own = f"--fleet={self._fleet}"
        return {each.pid for each in psutil.process_iter(["cmdline"]) if own in (each.info["cmdline"] or ())}

    def incarnations(self) -> dict[str, str]:
        return {name: info["ref"]["incarnation"] for name, info in self.workers().items()}

    def until(self, *names: str) -> dict[str, str]:
        eventually(lambda: set(self.workers()), lambda found: found == set(names), READY_WITHIN_S)
        return self.incarnations()

    def chat(self) -> str:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 7}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])


def command(name: str, file: Path) -> Sequence[str]:
    return [sys.executable, "-m", "headrace.cli", name, f"--config={file}"]


@pytest.fixture
def deployment(tmp_path: Path, ray_head: RayHead, redis_url: str, fleet: str) -> Deployment:
    return Deployment(tmp_path, ray_head, redis_url, fleet)


@pytest.mark.timeout(120)
def test_pools_stay_placed_whatever_becomes_of_the_placement(deployment: Deployment, ray_head: RayHead) -> None:
    # 1. Two pools on one machine, though the file gives all workers the same port.
    deployment.write(ray_head.address, one={"role": "local"}, other={"role": "local"})
    with deployment.service("frontend") as (_, frontend):
        deployment.url = frontend["url"]
        with deployment.service("placement") as (placement, said):
            assert said == {"workers": "2"}
            first = deployment.until("one-0", "other-0")
            assert deployment.processes() == {info["pid"] for info in deployment.workers().values()}
            assert "0.0.0.0" not in {info["address"].split(":")[0] for info in deployment.workers().values()}
            text = deployment.chat()

            # 2. The placement dies. Nobody else notices.
            placement.send_signal(signal.SIGKILL)
            placement.wait()
            assert deployment.chat() == text
            assert deployment.incarnations() == first

        # 3. The next one takes over what it still wants and ends the rest.
        deployment.write(ray_head.address, one={"role": "local"})
        with deployment.service("placement") as (placement, said):
            assert said == {"workers": "1"}
            assert deployment.until("one-0") == {"one-0": first["one-0"]}

            # 4. A worker that it took over and that dies comes back.
            os.kill(deployment.workers()["one-0"]["pid"], signal.SIGKILL)
            eventually(
                deployment.incarnations,
                lambda found: set(found) == {"one-0"} and found["one-0"] != first["one-0"],
                READY_WITHIN_S,
            )
            assert deployment.chat() == text

            # 5. Stopped, it leaves nothing.
            placement.send_signal(signal.SIGTERM)
            assert placement.wait(timeout=STOP_WITHIN_S) == 0
        eventually(deployment.processes, lambda left: not left)


@pytest.mark.parametrize(
    ("pools", "sentence"),
    [
        ({"decode": {"role": "decode", "gpus": 8}}, "decode-0 needs 1 CPU and 8 GPUs on one machine"),
        ({"decode": {"role": "decode", "replicas": 9}}, f"9 workers need 9 CPUs, and there are {CPUS} CPUs in all"),
        ({"decode": {"role": "decode", "replicas": "many"}}, "replicas"),
        ({}, "has no worker to place"),
    ],
    ids=["gpus", "replicas", "number", "none"],
)
def test_what_cannot_be_placed_is_one_sentence(
    deployment: Deployment, ray_head: RayHead, pools: dict[str, dict[str, object]], sentence: str
) -> None:
    deployment.write(ray_head.address, **pools)
    environment = {**os.environ, **ray_head.environment}
    ended = subprocess.run(
        command("placement", deployment.file), capture_output=True, text=True, timeout=40, check=False, env=environment
    )
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("headrace: ")
    assert sentence in last
    assert "Traceback" not in ended.stderr
