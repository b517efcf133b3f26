"""One file a deployment: every name right or refused with the nearest, flags over environment over file."""

from pathlib import Path

import pytest
import yaml

from headrace.bootstrap.check import run as check
from headrace.config import FrontendConfig, UpConfig, WorkerConfig, read
from headrace.config_commands import CheckConfig
from headrace.core.errors import StartupError

DOCUMENT = """
fleet: prod
redis_url: redis://127.0.0.1:6379/0
frontend: {port: 8001, disaggregation: auto}
worker: {dtype: float32, port: 9100}
pools:
  prefill: {role: prefill, replicas: 2}
  decode: {role: decode, max_num_seqs: 32, port: 9200}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "headrace.yaml"
    path.write_text(DOCUMENT)
    return path


def test_each_process_reads_what_is_for_all_its_section_and_its_pool(file: Path) -> None:
    frontend = read(FrontendConfig, [f"--config={file}"])
    assert (frontend.fleet, frontend.port, frontend.disaggregation) == ("prod", 8001, "auto")
    decode = read(WorkerConfig, [f"--config={file}", "--pool=decode"])
    assert (decode.role, decode.dtype, decode.max_num_seqs, decode.port) == ("decode", "float32", 32, 9200)
    prefill = read(WorkerConfig, [f"--config={file}", "--pool=prefill"])
    assert (prefill.role, prefill.port, prefill.fleet) == ("prefill", 9100, "prod")


def test_flags_go_over_environment_over_file_over_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_DTYPE", "bfloat16")
    monkeypatch.setenv("HEADRACE_PORT", "9300")
    worker = read(WorkerConfig, ["--pool=decode", "--port=9400"])
    assert (worker.port, worker.dtype, worker.max_num_seqs, worker.threads) == (9400, "bfloat16", 32, 0)


def test_up_is_frontend_and_workers_at_once(file: Path) -> None:
    up = read(UpConfig, [f"--config={file}"])
    assert (up.port, up.dtype, up.disaggregation) == (8001, "float32", "auto")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flet: x", ["'flet'", "'fleet'"]),
        ("frontend: {prot: 1}", ["frontend", "'prot'", "'port'"]),
        ("pools: {a: {rol: decode}}", ["pool a", "'rol'", "'role'"]),
        ("worker: [1]", ["worker", "names and values"]),
        ("a: [", ["not YAML"]),
        ("- 1", ["names and values"]),
        ("worker: {port: many}", ["port"]),
        ("frontend: {disaggregation: sometimes}", ["disaggregation", "always"]),
        ("metrics_port: many", ["metrics_port"]),
        ("worker: {port: 1}\nfleet: a\nworker: {port: 2}", ["'worker'", "twice", "line 3"]),
        ("pools:\n  a:\n    role: decode\n    role: prefill", ["'role'", "twice", "line 4"]),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_place(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(StartupError) as refused:
        check(CheckConfig(action="check", file=path))
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    "value", ["hidden: x", '"hidden', "\t- hidden", "*hidden", "!hidden x", "!!binary hidden", "[" * 3000 + "hidden"]
)
def test_what_is_not_yaml_is_not_shown(tmp_path: Path, value: str) -> None:
    """The word there may be a secret."""
    path = tmp_path / "wrong.yaml"
    path.write_text(f"worker_token: {value}\n")
    with pytest.raises(StartupError, match="is not YAML") as refused:
        check(CheckConfig(action="check", file=path))
    assert "hidden" not in str(refused.value)


def test_where_it_is_not_yaml_is_said(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("fleet: a\nworker_token: a: b\n")
    with pytest.raises(StartupError, match="line 2, column 16"):
        check(CheckConfig(action="check", file=path))


def test_a_key_may_go_over_what_is_merged_in(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    first, second = "a: &a {role: prefill, threads: 1}", "b: &b {<<: *a, role: decode}"
    path.write_text(f"pools:\n  {first}\n  {second}\n  c: {{<<: *b, threads: 2}}\n")
    for pool, told in (("b", ("decode", 1)), ("c", ("decode", 2))):
        worker = read(WorkerConfig, [f"--config={path}", f"--pool={pool}"])
        assert (worker.role, worker.threads) == told


def test_check_shows_every_process_where_the_file_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text("fleet: prod\n")
    assert check(CheckConfig(action="check", file=path)) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert {"frontend", "router", "gateway", "worker", "up"} <= set(told)
    assert {process["fleet"] for process in told.values()} == {"prod"}


def test_a_missing_file_and_a_missing_pool_are_named(file: Path) -> None:
    with pytest.raises(StartupError, match=r"nowhere\.yaml"):
        read(WorkerConfig, ["--config=/nowhere.yaml"])
    with pytest.raises(StartupError, match=r"no pool 'spare'.*prefill, decode"):
        read(WorkerConfig, [f"--config={file}", "--pool=spare"])


def test_check_shows_every_process_and_no_secret(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WORKER_TOKEN", "ADMIN_API_KEY"):
        monkeypatch.setenv(f"HEADRACE_{name}", "hidden-word")
    monkeypatch.setenv("HEADRACE_API_KEYS", '["hidden-word", "hidden-word-2"]')
    assert check(CheckConfig(action="check", file=file)) == 0
    shown = capsys.readouterr().out
    told = yaml.safe_load(shown)
    assert set(told) == {"frontend", "worker", "pool prefill", "pool decode"}
    assert told["pool decode"]["max_num_seqs"] == 32
    assert "hidden-word" not in shown
    frontend = told["frontend"]
    assert (frontend["worker_token"], frontend["admin_api_key"]) == ("***", "***")
    assert frontend["api_keys"] == ["***", "***"]
    assert told["pool decode"]["worker_token"] == "***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://headrace:hush@db:6379/0", "rediss://***@db:6379/0"),
        ("redis://:hush@db:6379", "redis://***@db:6379"),
        ("redis://:hu@sh@db:6379", "redis://***@db:6379"),
        ("redis://db:6379/0?password=hush", "redis://***@db:6379/0"),
        ("redis://:hu/sh@db:6379", "redis://***@db:6379"),
        ("redis://:hu?sh@db:6379", "redis://***"),
        ("unix://:hush@/run/redis.sock?db=1", "unix://***@/run/redis.sock"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("hush", "***"),
        ("", ""),
    ],
)
def test_check_shows_which_redis_and_never_its_password(
    url: str, shown: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_REDIS_URL", url)
    assert check(CheckConfig(action="check", file=file)) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert {process["redis_url"] for process in told.values()} == {shown}


def test_what_no_secret_was_given_for_is_shown_empty(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(CheckConfig(action="check", file=file)) == 0
    frontend = yaml.safe_load(capsys.readouterr().out)["frontend"]
    assert (frontend["worker_token"], frontend["admin_api_key"], frontend["api_keys"]) == ("", "", [])
