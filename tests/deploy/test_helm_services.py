"""Each container that the chart renders starts as a local process, and a chat passes through all of them together."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import probe
import psutil
import pytest
from chart import Object, Pod, merged, pods, rendered, scenario
from chart_services import PROBES, as_local, probe_command, probe_target, services
from fixtures.living import alive
from fixtures.ray_head import RayHead
from local_services import Localised, Running, running

WITHIN_S = 100.0
CACHE = "/var/cache/headrace"
LIGHT = {"config": {"worker": {"engine": "fake"}}, "shutdown": {"preStopSeconds": 1, "drainSeconds": 10}}
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, Path]:
    """Volumes: an empty cache that has the models which are here already, and Redis's directory."""
    models = Path("~/.cache/headrace/models").expanduser()
    models.mkdir(parents=True, exist_ok=True)
    for name in ("cache", "data", "pods"):
        (tmp_path / name).mkdir()
    (tmp_path / "cache" / "models").symlink_to(models)
    return {CACHE: tmp_path / "cache", "/data": tmp_path / "data"}


def test_a_chat_passes_through_the_default_release(directories: dict[str, Path], tmp_path: Path) -> None:
    objects = rendered(merged(scenario("minimal"), LIGHT))
    with running(services(objects, {}, directories), tmp_path / "pods", WITHIN_S) as cluster:
        # 1. Every pod is ready by its own probe: `running` has seen that. The other probes pass too.
        assert set(cluster) == {"headrace-frontend", "headrace-redis", "headrace-prefill-0", "headrace-decode-0"}
        assert failing(objects, cluster) == []
        # 2. `helm test` chats, through the Service's name.
        assert helm_test(objects, cluster, directories).returncode == 0
        # 3. Workers are known by their pods' names and reached at the address they announce; pages travelled.
        door = url(cluster["headrace-frontend"], 8000)
        workers = httpx.get(f"{door}/v1/fleet", timeout=10).json()["workers"]
        assert {each["info"]["ref"]["worker"] for each in workers} == {"headrace-prefill-0", "headrace-decode-0"}
        assert 'headrace_kv_transfers_total{direction="received",' in httpx.get(f"{door}/metrics", timeout=10).text
        # 4. Each process has a metrics page of its own where its pod says.
        for name in ("headrace-frontend", "headrace-prefill-0", "headrace-decode-0"):
            page = httpx.get(f"{url(cluster[name], 9090)}/metrics", timeout=10)
            assert (page.status_code, "# HELP" in page.text) == (200, True), name
        # 5. Without its worker the frontend is alive and not ready.
        end(objects, cluster, "headrace-decode-0")
        assert failing(objects, cluster) == [("headrace-frontend", "readinessProbe")]
        # 6. Everything ends well within its grace.
        for name in ("headrace-frontend", "headrace-prefill-0", "headrace-redis"):
            end(objects, cluster, name)


def test_a_chat_passes_through_gateway_and_router_with_a_redis_elsewhere(
    directories: dict[str, Path], tmp_path: Path, redis_url: str
) -> None:
    apart: dict[str, Any] = {
        "frontend": {"split": True},
        "pools": {"all": {"replicas": 1}},
        "apiKeys": {"secret": "keys", "testKey": "one", "adminKey": "root"},
    }
    objects = rendered(merged(scenario("external-redis"), LIGHT, apart))
    secrets = {"shared-redis": {"redis-url": redis_url}, "keys": {"api-keys": '["k-1"]', "one": "k-1", "root": "r-1"}}
    with running(services(objects, secrets, directories), tmp_path / "pods", WITHIN_S) as cluster:
        assert set(cluster) == {"headrace-gateway", "headrace-router", "headrace-all-0"}
        assert failing(objects, cluster) == []
        # A chat with the key passes; one without is refused.
        assert helm_test(objects, cluster, directories, secrets).returncode == 0
        gateway = url(cluster["headrace-gateway"], 8000)
        assert httpx.get(f"{gateway}/v1/models", timeout=10).status_code == 401
        # Operators look at the fleet, and the router takes their orders from the gateway.
        for key, path, status in (("k-1", "all-0", 403), ("r-1", "nobody", 404)):
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.post(f"{gateway}/v1/fleet/{path}/drain", json={}, headers=headers, timeout=10)
            assert answer.status_code == status, answer.text
        # A gateway without its router is alive and not ready.
        end(objects, cluster, "headrace-router")
        assert failing(objects, cluster) == [("headrace-gateway", "readinessProbe")]
        for name in ("headrace-gateway", "headrace-all-0"):
            end(objects, cluster, name)


def test_a_chat_passes_through_workers_that_ray_places(
    directories: dict[str, Path], tmp_path: Path, ray_head: RayHead
) -> None:
    small: dict[str, Any] = {
        "ray": {"address": ray_head.client_address},
        "workers": {"gpus": 0},
        "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
        "env": [{"name": name, "value": value} for name, value in ray_head.environment.items()],
    }
    objects = rendered(merged(scenario("ray"), LIGHT, small))
    with running(services(objects, {}, directories), tmp_path / "pods", WITHIN_S) as cluster:
        assert set(cluster) == {"headrace-frontend", "headrace-placement", "headrace-redis"}
        assert failing(objects, cluster) == []
        assert helm_test(objects, cluster, directories).returncode == 0
        for name in ("headrace-placement", "headrace-frontend", "headrace-redis"):
            end(objects, cluster, name)


def url(each: Running, port: int) -> str:
    return f"http://127.0.0.1:{each.ports[port]}"


def failing(objects: list[Object], cluster: Mapping[str, Running]) -> list[tuple[str, str]]:
    """The probes that do not pass, of the pods that run."""
    return [
        (pod.name, which)
        for pod in pods(objects)
        if pod.name in cluster and cluster[pod.name].process.poll() is None
        for which in PROBES
        if which in pod.container and not passing(pod, which, cluster)
    ]


def passing(pod: Pod, which: str, cluster: Mapping[str, Running]) -> bool:
    each = cluster[pod.name]
    local = Localised(each.service, addresses(cluster), Path())
    if "exec" in pod.container[which]:
        words = probe_command(pod, which, each.service.environment)
        return replace(each, health=[local.text(word) for word in words]).check_health().returncode == 0
    return not probe.passes(json.loads(local.text(json.dumps(probe_target(pod, which)))))


def addresses(cluster: Mapping[str, Running]) -> dict[tuple[str, int], int]:
    return {(name, port): here for name, each in cluster.items() for port, here in each.ports.items()}


def helm_test(
    objects: list[Object],
    cluster: Mapping[str, Running],
    directories: Mapping[str, Path],
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What `helm test` runs."""
    (pod,) = (pod for pod in pods(objects) if pod.workload["kind"] == "Pod")
    service = as_local(pod, "", secrets or {}, directories)
    local = Localised(service, addresses(cluster), Path())
    done = subprocess.run(
        [local.text(word) for word in service.command],
        env={
            "PATH": str(Path(sys.executable).parent),
            **{name: local.text(value) for name, value in service.environment.items()},
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip(), done.stderr
    return done


def end(objects: list[Object], cluster: Mapping[str, Running], name: str) -> None:
    """preStop, then SIGTERM: the process ends well within the grace period, and leaves no child."""
    pod = next(pod for pod in pods(objects) if pod.name == name)
    if "lifecycle" in pod.container:
        subprocess.run(pod.container["lifecycle"]["preStop"]["exec"]["command"], check=True, timeout=10)
    children = psutil.Process(cluster[name].process.pid).children(recursive=True)
    assert cluster[name].stop(pod.spec.get("terminationGracePeriodSeconds", 30)) == 0, cluster[name].log.read_text()
    assert alive(children) == []
