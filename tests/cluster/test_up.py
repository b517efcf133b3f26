"""`headrace up` as a person meets it: what it says, when it cannot start, and what it leaves behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import openai
import psutil
import pytest
from fixtures.cluster import eventually, running
from fixtures.living import children_of, left_after

# The goal is 10 s on an idle machine (docs/log.md has the table); a test only holds the deadline of five times that.
FIRST_TOKEN_DEADLINE_S = 50.0


def up(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `headrace up` to an end that is expected to come by itself."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "up", "--port=0", "--grpc-port=0", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **environment},
        check=False,
    )


def assert_one_sentence(ended: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Exit code 2 and, as the last line, a sentence that holds the words; never a traceback."""
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    sentence = ended.stderr.strip().splitlines()[-1]
    assert sentence.startswith("headrace")
    for word in words:
        assert word in sentence


def told(ended: "subprocess.CompletedProcess[str]") -> tuple[Path, str]:
    """The directory of logs that it named, and what it said of it in the end."""
    said = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines())
    return Path(said["logs"]), said["ended"]


def test_a_port_in_use_is_named_with_the_flag_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_sentence(up("--engine=fake", f"--port={port}"), str(port), "--port")
        assert_one_sentence(up("--engine=fake", f"--grpc-port={port}"), str(port), "--grpc-port")


def test_every_line_is_written_in_one_piece_where_python_does_not_buffer() -> None:
    command = [sys.executable, "-m", "headrace.cli", "up", "--engine=fake", "--redis-url=redis://127.0.0.1:1"]
    read, written = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with read, written:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        ports = ("--port=0", "--grpc-port=0")
        subprocess.run(
            [*command, *ports], stdout=written, stderr=subprocess.DEVNULL, env=environment, timeout=50, check=False
        )
        written.close()
        pieces = list(iter(lambda: read.recv(4096).decode(), ""))
    assert pieces[-1].split() == ["ended", "nothing", "is", "left"]
    assert [piece for piece in pieces if piece.count("\n") != 1 or not piece.endswith("\n")] == []


def test_a_missing_model_is_one_sentence() -> None:
    assert_one_sentence(up("/nowhere/model.gguf"), "/nowhere/model.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"PK\x03\x04 not a model"])
def test_a_broken_model_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)
    assert_one_sentence(up(str(broken)), "broken.gguf")


def test_too_little_memory_is_one_sentence_with_the_arithmetic() -> None:
    assert_one_sentence(up(f"--kv-cache-memory-bytes={10**15}"), "GiB", "--kv-cache-memory-bytes")


def test_what_a_worker_cannot_do_is_said_by_up() -> None:
    ended = up("--engine=fake", "--max-num-seqs=64", "--max-num-batched-tokens=32")
    assert_one_sentence(ended, "max_num_batched_tokens", "max_num_seqs")


def test_a_redis_that_is_away_is_one_sentence() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        ended = up("--engine=fake", f"--redis-url=redis://127.0.0.1:{port}/0")
    assert_one_sentence(ended, "Redis", str(port))
    logs, outcome = told(ended)
    assert (logs.exists(), outcome) == (False, "nothing is left"), "nothing ran that could have logged anything"
    assert_one_sentence(up("--engine=fake", "--redis-url=http://127.0.0.1"), "Redis")


def test_mistakes_in_flags_and_environment_are_one_sentence() -> None:
    assert_one_sentence(up("--prefill=-1"), "--prefill")
    for ended in (up("--no-such-flag"), up("--port"), up("model", "another")):
        assert_one_sentence(ended)
        assert len(ended.stderr.splitlines()) == 1
    assert_one_sentence(up(HEADRACE_ENGINE="steam"), "HEADRACE_ENGINE", "torch")
    assert_one_sentence(up("--prefill=0"), "--local 1")


def test_a_state_file_that_cannot_be_written_is_one_sentence() -> None:
    ended = up("--engine=fake", "--state-file=/nowhere/state.json")
    assert_one_sentence(ended, "/nowhere/state.json", "--state-file")
    logs, outcome = told(ended)
    assert outcome == f"the logs stay in {logs}"
    shutil.rmtree(logs)


def test_a_variable_that_cannot_be_read_is_one_sentence() -> None:
    ended = up("--engine=fake", HEADRACE_API_KEYS="hush")
    assert_one_sentence(ended, "HEADRACE_API_KEYS")
    assert "hush" not in ended.stderr


def test_neither_a_proxy_nor_our_own_variables_reach_into_the_cluster(tmp_path: Path) -> None:
    """Settings of `up` are not those of its workers, and what is on this machine is asked directly."""
    environment = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "HEADRACE_HOST": "0.0.0.0"}
    with running(tmp_path, "--engine=fake", "--host=127.0.0.1", environment=environment) as cluster:
        assert cluster.url.startswith("http://127.0.0.1:")
        assert cluster.state["prefill-0"]["address"].startswith("127.0.0.1:")


def test_workers_that_were_told_to_leave_are_no_failure(tmp_path: Path) -> None:
    """They come back, and after Ctrl-C there is nothing that anybody would want to read."""
    with running(tmp_path, "--engine=fake", "--log-level=debug") as cluster:
        for _ in range(2):
            before = cluster.incarnation("decode-0")
            httpx.post(f"{cluster.url}/v1/fleet/decode-0/drain", json={}, timeout=30).raise_for_status()
            cluster.wait_reborn("decode-0", before)
            eventually(lambda: cluster.incarnation("decode-0"), lambda now, old=before: now != old)
        cluster.process.send_signal(signal.SIGINT)
        said, _ = cluster.process.communicate(timeout=40)
    assert said.splitlines()[-1] == "ended  nothing is left"
    assert not Path(cluster.state["logs"]["path"]).exists()
    log = (tmp_path / "up.log").read_text()
    assert (log.count("process.left"), log.count("process.died")) == (2, 0)


def test_a_redis_that_died_is_a_death(tmp_path: Path) -> None:
    """It comes back, the fleet with it, and what was logged meanwhile stays."""
    with running(tmp_path, "--engine=fake") as cluster:
        (redis,) = children_of(cluster.process.pid, "redis-server")
        redis.kill()
        eventually((tmp_path / "up.log").read_text, lambda log: "redis.died" in log)
        body = {"prompt": "Still here", "max_tokens": 2}
        httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=30).raise_for_status()
        cluster.process.send_signal(signal.SIGINT)
        said, _ = cluster.process.communicate(timeout=40)
    logs = Path(cluster.state["logs"]["path"])
    assert said.splitlines()[-1] == f"ended  the logs stay in {logs}"
    assert (logs / "redis" / "redis.log").stat().st_size
    shutil.rmtree(logs)


@contextmanager
def _hangups(meant: signal.Handlers) -> Iterator[None]:
    """What children of this process do when their terminal closes: nohup's do nothing, and all of theirs."""
    former = signal.signal(signal.SIGHUP, meant)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_closed_terminal_is_told_like_ctrl_c(tmp_path: Path) -> None:
    with _hangups(signal.SIG_DFL), running(tmp_path, "--engine=fake") as cluster:
        cluster.process.send_signal(signal.SIGHUP)
        said, _ = cluster.process.communicate(timeout=40)
    assert cluster.process.returncode == 0
    assert said.splitlines()[-1] == "ended  nothing is left"


def test_who_outlives_the_terminal_does(tmp_path: Path) -> None:
    with _hangups(signal.SIG_IGN), running(tmp_path, "--engine=fake") as cluster:
        cluster.process.send_signal(signal.SIGHUP)
        body = {"prompt": "Still here", "max_tokens": 2}
        httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=30).raise_for_status()


def test_the_second_ctrl_c_ends_at_once_and_names_what_is_left(tmp_path: Path) -> None:
    flags = ["--engine=fake", "--fake-step-ms=20", "--drain-s=60", "--port=0", "--grpc-port=0"]
    endless = {"prompt": "On and on", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with (tmp_path / "up.log").open("w") as log:
        command = [sys.executable, "-m", "headrace.cli", "up", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        with process.stdout as said:
            logs = Path(_line(said, "logs").split()[1])
            url = _line(said, "ready").split()[1]
            with httpx.stream("POST", f"{url}/completions", json=endless, timeout=60) as response:
                next(response.iter_lines())
                # 1. The first one waits for the answer.
                process.send_signal(signal.SIGINT)
                assert "Ctrl-C again" in _line(said, "drain")
                # 2. The second waits for nobody.
                process.send_signal(signal.SIGINT)
                ended = _line(said, "ended")
        assert process.wait(timeout=10) == 130
    finally:
        process.kill()
        process.wait()
    assert ended == (f"ended  the logs stay in {logs}\n" if logs.exists() else "ended  nothing is left\n")
    shutil.rmtree(logs, ignore_errors=True)


def _line(said: IO[str], word: str) -> str:
    """The next line that begins so."""
    return next(line for line in said if line.startswith(word))


def test_ctrl_c_tells_everybody_how_the_answer_ended(tmp_path: Path) -> None:
    """An answer that cannot be finished in time ends with one clear error, streamed or not."""
    endless = {"prompt": "On and on", "max_tokens": 8000, "ignore_eos": True}
    with running(tmp_path, "--engine=fake", "--fake-step-ms=20") as cluster, ThreadPoolExecutor() as pool:
        url = f"{cluster.url}/v1/completions"
        whole = pool.submit(httpx.post, url, json=endless, timeout=60)
        with httpx.stream("POST", url, json={**endless, "stream": True}, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            eventually(lambda: cluster.fleet()["requests_running"], lambda count: count == 2)
            cluster.process.send_signal(signal.SIGINT)
            last = [line for line in lines if line.startswith("data: ")][-1]
        for error in (json.loads(last.removeprefix("data: "))["error"], whole.result().json()["error"]):
            assert error["code"] == "unavailable"
            assert "stopping" in error["message"]
        assert cluster.process.wait(timeout=30) == 0


def test_first_token_of_the_real_model_comes_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with running(tmp_path) as cluster:
        assert cluster.output[-1] == f"ready  {cluster.url}/v1  (model smollm2-135m, 1 prefill, 1 decode)"
        with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=60, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="smollm2-135m", messages=[{"role": "user", "content": "Hello"}], stream=True, max_tokens=4
            )
            next(event for event in stream if event.choices and event.choices[0].delta.content)
            took = time.monotonic() - began
            assert took < FIRST_TOKEN_DEADLINE_S
            # The first token does not wait for the pages: they have moved once the answer is complete.
            assert [event.choices[0].finish_reason for event in stream if event.choices][-1] == "length"
        assert cluster.metric("headrace_kv_transfer_bytes_total", direction="received") > 0


def test_a_killed_up_leaves_no_process_behind(tmp_path: Path) -> None:
    """SIGKILL gives `up` no chance to clean: its children must find out by themselves."""
    command = [sys.executable, "-m", "headrace.cli", "up", "--engine=fake", "--port=0", "--grpc-port=0"]
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert any(line.startswith("ready ") for line in process.stdout)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 4  # Redis, frontend, two workers
        process.kill()
        process.wait()
    left = left_after(family, 30)
    for child in left:
        child.kill()
    assert left == []


def test_ctrl_c_while_starting_stops_what_has_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "up", "--engine=fake", "--port=0", "--grpc-port=0"]
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert any(line.startswith("redis ") for line in process.stdout)
        me = psutil.Process(process.pid)
        family = eventually(lambda: me.children(recursive=True), lambda found: len(found) >= 2)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.wait(timeout=30) == 130
    assert left_after(family, 30) == []
    assert "Traceback" not in (tmp_path / "up.log").read_text()
