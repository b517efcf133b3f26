"""One fleet of unlike workers: pages of different sizes serve together, other weights under the same name do not."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fixtures.cluster import eventually
from fixtures.redis_server import RedisServer
from fixtures.tiny_checkpoint import Case, Checkpoint, make_checkpoint

READY_WITHIN_S = 60.0
TOKENS = 8
# Which pair a request goes to is the router's choice, within the link; so each pair has one of its own.
WORKERS = {
    "wide-prefill": ("prefill", "tcp", 32),
    "fine-decode": ("decode", "tcp", 16),
    "fine-prefill": ("prefill", "ucx", 16),
    "wide-decode": ("decode", "ucx", 32),
}
PAIRS = {("wide-prefill", "fine-decode"), ("fine-prefill", "wide-decode")}
COUNT = 12


@dataclass(frozen=True)
class Said:
    """A process and the line with which it said that it serves."""

    process: subprocess.Popen[str]
    facts: dict[str, str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(Case("llama", "Llama"), tmp_path_factory.mktemp("mine") / "tiny")


@contextmanager
def process(command: list[str], redis: str, directory: Path) -> Iterator[Said]:
    """A service that ends well when it is asked to."""
    with (directory / f"{command[0]}-{len(list(directory.iterdir()))}.log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *command, f"--redis-url={redis}", "--served-model-name=tiny"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert child.stdout is not None
        yield Said(child, json.loads(child.stdout.readline()))
        child.terminate()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.communicate()


def worker(model: Path, name: str, role: str, link: str, page: int) -> list[str]:
    flags = f"--name={name} --role={role} --link={link} --block-size={page} --dtype=float32 --threads=1"
    return ["worker", str(model), *flags.split(), "--kv-cache-memory-bytes=8388608"]


@contextmanager
def fleet(checkpoint: Checkpoint, redis: str, directory: Path) -> Iterator[httpx.Client]:
    """A frontend and the four workers; they load at the same time."""
    with ExitStack() as closing:
        front = ["frontend", str(checkpoint.directory), "--port=0", "--grpc-port=0"]
        said = closing.enter_context(process(front, redis, directory))
        for name, (role, link, page) in WORKERS.items():
            closing.enter_context(process(worker(checkpoint.directory, name, role, link, page), redis, directory))
        with httpx.Client(base_url=said.facts["url"], timeout=30) as client:
            eventually(lambda: attached(client), lambda found: found == set(WORKERS), READY_WITHIN_S)
            yield client


def attached(client: httpx.Client) -> set[str]:
    return {one["info"]["ref"]["worker"] for one in client.get("/v1/fleet").json()["workers"] if one["attached"]}


def prompt(number: int) -> list[int]:
    """Of a length that fills no page."""
    return [20 + (number * 37 + 7 * place) % 280 for place in range(100 + 5 * number)]


async def ask_all(url: str) -> list[tuple[list[int], str]]:
    """Tokens and request id of each answer; all at once, so that one pair alone would be the worse choice."""

    async def ask(client: httpx.AsyncClient, number: int) -> tuple[list[int], str]:
        body = {"model": "tiny", "prompt": prompt(number), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/completions", json={**body, "return_token_ids": True})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"], answer.headers["x-request-id"]

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return await asyncio.gather(*(ask(client, number) for number in range(COUNT)))


def cli(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return ended.returncode, ended.stdout


@pytest.mark.timeout(120)
def test_unlike_pages_serve_together_and_other_weights_are_refused(
    checkpoint: Checkpoint, redis_server: RedisServer, tmp_path: Path
) -> None:
    expected = [checkpoint.greedy(prompt(number), TOKENS) for number in range(COUNT)]
    assert min(margin for _, margin in expected) > 1e-3
    logs = tmp_path / "logs"
    logs.mkdir()
    with fleet(checkpoint, redis_server.url, logs) as client:
        url = str(client.base_url)
        # 1. Pages of 32 tokens become pages of 16 and the other way, and no token of an answer is another.
        told = asyncio.run(ask_all(url))
        assert [ids for ids, _ in told] == [ids for ids, _ in expected]
        explained = [client.get(f"/v1/requests/{request}/explain").json() for _, request in told]
        routes = [route for one in explained for route in one["routes"]]
        assert {(route["prefill"]["worker"], route["decode"]["worker"]) for route in routes} == PAIRS
        # 2. A worker with one weight changed comes under the same name.
        stranger = other_weights(checkpoint, tmp_path / "strange")
        with process(worker(stranger, "stranger", "local", "tcp", 16), redis_server.url, logs) as said:
            eventually(lambda: client.get("/v1/fleet").json()["refused"], bool, READY_WITHIN_S)
            code, shown = cli("status", f"--url={url}")
            (line,) = [line for line in shown.splitlines() if line.startswith("stranger is refused")]
            assert code == 0
            assert checkpoint.files.digest.hex()[:12] in line
            assert line.count(" and ") == 2
            # 3. It knows, and says so to whoever asks it.
            address = said.facts["address"]
            code, shown = eventually(lambda: cli("health", address), lambda seen: "weights" in seen[1])
            assert code == 1
            assert checkpoint.files.digest.hex()[:12] in shown
            # 4. Nothing lands there, and the fleet serves on.
            again = asyncio.run(ask_all(url))
            assert [ids for ids, _ in again] == [ids for ids, _ in expected]
            for _, request in again:
                (route,) = client.get(f"/v1/requests/{request}/explain").json()["routes"]
                assert "stranger" not in json.dumps(route)


def other_weights(checkpoint: Checkpoint, directory: Path) -> Path:
    """The same model with the last byte of its weights changed."""
    directory.mkdir()
    for file in checkpoint.directory.iterdir():
        if file.is_file():
            (directory / file.name).write_bytes(file.read_bytes())
    (weights,) = directory.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return directory
