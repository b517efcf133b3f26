"""Configurations that go from one process to another: by command line and environment, exactly, and without secrets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from headrace import config
from headrace.config import FrontendConfig, GatewayConfig, RouterConfig, UpConfig, WorkerConfig
from headrace.config_commands import ChatConfig, DrainConfig
from headrace.core.errors import StartupError
from headrace.up import process_specs

REPLAY = """
import sys
from headrace import config
kind = getattr(config, sys.argv[1])
print(config.read(kind, sys.argv[2:]).model_dump_json())
print([key.get_secret_value() for key in getattr(config.read(kind, sys.argv[2:]), "api_keys", ())])
print(config.read(kind, sys.argv[2:]).redis_url.get_secret_value())
"""


def replayed(kind: type[config.ProcessConfig], own: config.ProcessConfig) -> list[str]:
    """What a child reads that is started with the command line and the environment made for `own`."""
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, kind.__name__, *config.arguments(own)],
        env=config.child_environment(own, threads=1),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_child_is_what_it_was_made_to_be_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOST", "0.0.0.0")
    monkeypatch.setenv("HEADRACE_PORT", "8123")
    monkeypatch.setenv("headrace_engine", "fake")
    up = config.read(UpConfig, ["--engine=torch", "--host=127.0.0.1"])
    worker = config.derive(WorkerConfig, up, host=config.LOOPBACK, port=0, role="decode")
    read_back, *_ = replayed(WorkerConfig, worker)
    assert read_back == worker.model_dump_json()
    frontend = config.derive(FrontendConfig, up)
    read_back, *_ = replayed(FrontendConfig, frontend)
    assert read_back == frontend.model_dump_json()


def test_secrets_travel_in_the_environment_and_never_on_a_command_line() -> None:
    up = UpConfig(
        redis_url=SecretStr("redis://:hush@db:6379/0"),
        api_keys=(SecretStr("k1"), SecretStr("k2")),
        worker_token=SecretStr("t"),
    )
    for spec in process_specs(up, up.redis_url.get_secret_value(), Path("/tmp")):
        assert not any("hush" in word or "k1" in word for word in spec.argv)
    frontend = config.derive(FrontendConfig, up)
    _, keys, redis = replayed(FrontendConfig, frontend)
    assert (keys, redis) == ("['k1', 'k2']", "redis://:hush@db:6379/0")
    worker = config.derive(WorkerConfig, up)
    _, _, redis = replayed(WorkerConfig, worker)
    assert redis == "redis://:hush@db:6379/0"
    assert "HEADRACE_API_KEYS" not in config.child_environment(worker, threads=1)


@pytest.mark.parametrize("key", ["hush\n", " hush", "h\u00fcsh", "hu\tsh", " "])
def test_a_key_that_no_header_can_carry_is_refused_and_not_told(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ADMIN_API_KEY", key)
    for kind, words in ((FrontendConfig, []), (RouterConfig, []), (DrainConfig, ["prefill-0"])):
        with pytest.raises(StartupError, match=r"^HEADRACE_ADMIN_API_KEY: A key is printable ASCII") as refused:
            config.read(kind, words)
        assert key == " " or key.strip() not in str(refused.value)
    monkeypatch.delenv("HEADRACE_ADMIN_API_KEY")
    monkeypatch.setenv("HEADRACE_API_KEYS", json.dumps(["good", key]))
    with pytest.raises(StartupError, match=r"^HEADRACE_API_KEYS: A key is printable ASCII"):
        config.read(GatewayConfig, [])
    with pytest.raises(StartupError, match=r"^--api-key: A key is printable ASCII"):
        config.read(ChatConfig, [f"--api-key={key}"])


def test_other_variables_reach_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "C.UTF-8")
    environment = config.child_environment(WorkerConfig(), threads=3)
    assert (environment["LANG"], environment["OMP_NUM_THREADS"]) == ("C.UTF-8", "3")
    assert environment["PATH"] == os.environ["PATH"]


def test_a_variable_that_cannot_be_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEYS", "hush")
    with pytest.raises(StartupError, match="HEADRACE_API_KEYS") as refused:
        config.read(GatewayConfig, [])
    assert "hush" not in str(refused.value)


def test_pulls_are_turned_off_by_a_flag_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.read(UpConfig, []).kv_pull == "auto"
    assert config.derive(FrontendConfig, config.read(UpConfig, ["--kv-pull=off"])).kv_pull == "off"
    monkeypatch.setenv("HEADRACE_KV_PULL", "off")
    assert config.read(RouterConfig, []).kv_pull == "off"
    with pytest.raises(StartupError, match=r"kv-pull: .*'auto' or 'off'"):
        config.read(RouterConfig, ["--kv-pull=sometimes"])


def test_the_instruction_set_is_a_flag_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.read(WorkerConfig, []).cpu_isa == "auto"
    monkeypatch.setenv("HEADRACE_CPU_ISA", "avx512")
    assert config.read(WorkerConfig, []).cpu_isa == "avx512"
    assert config.derive(WorkerConfig, config.read(UpConfig, ["--cpu-isa", "avx2"])).cpu_isa == "avx2"
    with pytest.raises(StartupError, match=r"cpu-isa: .*'avx2', 'avx512' or 'avx512bf16'\. See --help"):
        config.read(WorkerConfig, ["--cpu-isa", "neon"])
