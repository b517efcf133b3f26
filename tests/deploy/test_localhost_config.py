"""README's commands for processes one by one, as they stand there: with the sample for one host they serve a chat, and
the documented call over gRPC."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from fixtures.ports import free_ports
from local_services import Running, Service, running

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "deploy/configs/localhost.yaml"
WITHIN_S = 50.0
STOP_WITHIN_S = 20.0
# What is healthy is asked of each by its own kind of question.
HEALTH = {
    "redis-server": ["redis-cli", "-h", "127.0.0.1", "-p", "6379", "ping"],
    "frontend": ["headrace", "health", "http://127.0.0.1:8000/ready"],
}


def readme_commands() -> list[str]:
    """The lines of the code block that names the sample."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if f"--config {CONFIG}" in block)
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


def grpc_example() -> str:
    """The program that docs/api.md gives."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/api.md").read_text(), re.DOTALL | re.MULTILINE)
    return program


Local = Callable[[str], str]


@pytest.fixture
def local() -> Local:
    """A text with free ports instead of the sample's."""
    here = dict(zip(("6379", "8000", "9000"), map(str, free_ports(3)), strict=True))
    return lambda text: re.sub(r"\b(6379|8000|9000)\b", lambda match: here[match[1]], text)


@pytest.fixture
def cluster(local: Local, tmp_path: Path) -> Iterator[dict[str, Running]]:
    """Every process of the block, with the fake engine."""
    config = tmp_path / "localhost.yaml"
    config.write_text(local((ROOT / CONFIG).read_text()))
    services = []
    for line in readme_commands():
        words = shlex.split(local(line).replace(CONFIG, str(config)))
        name = "redis-server" if "redis-server" in words[0] else words[-1] if "--pool" in words else words[1]
        services.append(
            Service(
                name=name,
                command=[Path(words[0]).name, *words[1:]],
                ports=[],
                environment={"HEADRACE_ENGINE": "fake"},
                health=[local(word) for word in HEALTH.get(name, ())],
                after=[] if name == "redis-server" else ["redis-server"],
            )
        )
    with running(services, tmp_path, WITHIN_S) as started:
        yield started


def test_the_readmes_commands_serve_a_chat(cluster: dict[str, Running], local: Local) -> None:
    assert set(cluster) == {"redis-server", "frontend", "prefill", "decode"}
    url = local("http://127.0.0.1:8000")
    words = " ".join(f"word{place}" for place in range(60))
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        asked = {"messages": [{"role": "user", "content": words}], "max_tokens": 8, "ignore_eos": True}
        answer = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == 8
        assert 'headrace_kv_transfers_total{direction="received",' in client.get("/metrics").text
    program = [sys.executable, "-c", local(grpc_example())]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip() != "") == (0, True), done.stderr
    for name in ("prefill", "decode", "frontend"):
        assert cluster[name].stop(STOP_WITHIN_S) == 0, name


def test_all_of_it_listens_on_loopback() -> None:
    document = yaml.safe_load((ROOT / CONFIG).read_text())
    hosts = [value for section in ("frontend", "worker") for key, value in document[section].items() if "host" in key]
    assert hosts == ["127.0.0.1"] * 3
    assert all(not any("host" in key for key in pool) for pool in document["pools"].values())
