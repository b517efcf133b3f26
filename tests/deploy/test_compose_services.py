"""docker-compose.yml is right by the Compose specification, and its services, run as local processes, serve a chat."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from compose_file import COMPOSE, ROOT, active, as_local, health_command, load
from local_services import Running, running

WITHIN_S = 50.0
STOP_WITHIN_S = 20.0
MODELS = Path("~/.cache/headrace").expanduser()
TOKEN = "HEADRACE_WORKER_TOKEN"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Running]]:
    """Everything that starts without a profile, with the fake engine."""
    MODELS.mkdir(parents=True, exist_ok=True)
    services = [as_local(name, _light(service), {"models": MODELS}) for name, service in active(load({})).items()]
    with running(services, tmp_path, WITHIN_S) as started:
        yield started


def _light(service: dict[str, Any]) -> dict[str, Any]:
    if service.get("image") != "headrace-worker":
        return service
    return {**service, "environment": {**service["environment"], "HEADRACE_ENGINE": "fake"}}


def test_services_chat_and_stop(cluster: dict[str, Running]) -> None:
    # 1. Each is healthy by its own check: the fixture has run them all.
    assert set(cluster) == {"redis", "frontend", "prefill", "decode"}
    # 2. A chat is answered at the published port, and its pages went from one worker to the other.
    url = f"http://127.0.0.1:{cluster['frontend'].ports[8000]}"
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        answer = client.post("/v1/chat/completions", json=_question()).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] == 8
        assert {worker["info"]["ref"]["worker"] for worker in client.get("/v1/fleet").json()["workers"]} == {
            "prefill",
            "decode",
        }
        assert 'headrace_kv_transfers_total{direction="received",' in client.get("/metrics").text
    # 3. A worker that is gone is unhealthy, and so is a frontend that cannot serve without it.
    assert cluster["decode"].stop(STOP_WITHIN_S) == 0
    assert cluster["decode"].check_health().returncode == 1
    check = cluster["frontend"].check_health()
    assert (check.returncode, "decode" in check.stdout) == (1, True), check.stdout
    # 4. All stop when asked to, well within the grace period.
    for name in ("prefill", "frontend", "redis"):
        assert cluster[name].stop(STOP_WITHIN_S) in {0, -signal.SIGTERM}, name
    # 5. No secret was logged.
    default_token = load({})["services"]["prefill"]["environment"][TOKEN]
    assert not any(default_token in each.log.read_text() for each in cluster.values())


def test_meets_the_compose_specification() -> None:
    checker = pytest.importorskip("check_jsonschema", reason="needs `pip install check-jsonschema`")
    assert checker.main(["--builtin-schema=vendor.compose-spec", os.fspath(COMPOSE)], standalone_mode=False) == 0


def test_starts_are_gated_by_health() -> None:
    """Whoever needs Redis waits until it answers; every service says how it is asked."""
    services = load({})["services"]
    for name, service in services.items():
        assert health_command(service), name
        gates = {other: rule["condition"] for other, rule in service.get("depends_on", {}).items()}
        assert gates == ({} if name == "redis" else {"redis": "service_healthy"}), name


def test_profile_gpu_adds_gpu_workers_alone() -> None:
    compose = load({})
    added = set(active(compose, "gpu")) - set(active(compose))
    assert added == {"prefill-gpu", "decode-gpu"}
    for name in added:
        service = compose["services"][name]
        device = service["deploy"]["resources"]["reservations"]["devices"][0]
        assert "gpu" in device["capabilities"]
        assert service["build"]["args"] == {"ACCELERATOR": "cuda"}
        pool = name.removesuffix("-gpu")
        assert service["command"] == compose["services"][pool]["command"]


def test_what_it_mounts_and_builds_is_here() -> None:
    compose = load({})
    for name, service in compose["services"].items():
        for mount in service.get("volumes", []):
            present = (
                (ROOT / mount["source"]).exists() if mount["type"] == "bind" else mount["source"] in compose["volumes"]
            )
            assert present, (name, mount)
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).exists(), name


def test_the_worker_token_is_the_deployments_own() -> None:
    """One token for all, from the environment; the default says that it must be changed."""
    ours = {name: service for name, service in load({TOKEN: "t1"})["services"].items() if name != "redis"}
    assert {service["environment"][TOKEN] for service in ours.values()} == {"t1"}
    assert "must-be-changed" in load({})["services"]["prefill"]["environment"][TOKEN]


def test_only_loopback_is_published() -> None:
    """Nothing is open to a network before its owner has decided so."""
    ports = [port for service in load({})["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def _question() -> dict[str, Any]:
    words = " ".join(f"word{place}" for place in range(60))
    return {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 8,
        "ignore_eos": True,
    }
