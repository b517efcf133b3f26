"""From a configuration file's pools to what each worker is told."""

from pathlib import Path

import pytest
import yaml

from headrace.bootstrap.placement import worker_specs
from headrace.config import PlacementConfig, read
from headrace.core.errors import StartupError
from headrace.placement.processes import MACHINE_ADDRESS, Bundle, ProcessSpec

SECRET = "redis://:hush@redis:6379/0"


def specs(directory: Path, document: dict[str, object], *flags: str) -> dict[str, ProcessSpec]:
    file = directory / "headrace.yaml"
    file.write_text(yaml.safe_dump({"fleet": "blue", "redis_url": SECRET, **document}, sort_keys=False))
    return {spec.name: spec for spec in worker_specs(read(PlacementConfig, [f"--config={file}", *flags]))}


def test_a_pool_becomes_its_replicas(tmp_path: Path) -> None:
    worker = {"host": "0.0.0.0", "port": 9100, "metrics_port": 9090, "dtype": "float32"}
    pools = {"prefill": {"role": "prefill", "gpus": 1, "cpus": 4}, "decode": {"role": "decode", "replicas": 2}}
    found = specs(tmp_path, {"worker": worker, "pools": pools, "model": "some/model"})
    assert list(found) == ["prefill-0", "decode-0", "decode-1"]
    prefill, decode = found["prefill-0"], found["decode-1"]
    assert prefill.bundles == (Bundle(4.0, 1.0),)
    assert decode.bundles == (Bundle(1.0, 0.0),)
    assert {"worker", "some/model", "--role=prefill", "--dtype=float32", "--threads=4"} <= set(prefill.argv)
    # Several may share a machine: its address, and any free port.
    assert {f"--advertise-host={MACHINE_ADDRESS}", "--host=0.0.0.0"} <= set(decode.argv)
    assert not [word for word in decode.argv if word.startswith(("--port", "--metrics-port", "--config", "--pool"))]
    assert prefill.log.parts[-3:] == ("logs", "blue", "prefill-0.log")


def test_secrets_travel_in_the_environment_and_nothing_else_of_ours_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_WORKER_TOKEN", "token")
    monkeypatch.setenv("SOMETHING", "of this machine")
    decode = specs(tmp_path, {"pools": {"decode": {"role": "decode"}}})["decode-0"]
    assert decode.environment["HEADRACE_REDIS_URL"] == SECRET
    assert decode.environment["HEADRACE_WORKER_TOKEN"] == "token"
    assert "SOMETHING" not in decode.environment
    assert "hush" not in " ".join(decode.argv)
    here = specs(tmp_path, {"pools": {"decode": {"role": "decode"}}}, "--placement=process")["decode-0"]
    assert here.environment["SOMETHING"] == "of this machine"


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({}, "no worker to place"),
        ({"pools": {"a": {"replicas": 0}}}, "no worker to place"),
        ({"pools": {"a": {"replicas": "many"}}}, "replicas"),
        ({"pools": {"a": {"cpus": 0}}}, "cpus"),
        ({"pools": {"a": {}}, "redis_url": ""}, "--redis-url"),
    ],
)
def test_what_cannot_be_placed_is_refused(tmp_path: Path, document: dict[str, object], word: str) -> None:
    with pytest.raises(StartupError, match=word):
        specs(tmp_path, document)


def test_a_file_is_needed() -> None:
    with pytest.raises(StartupError, match="--config"):
        worker_specs(read(PlacementConfig, []))
