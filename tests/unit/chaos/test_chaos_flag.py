"""--chaos-socket: a worker takes it, and nobody is invited to give it."""

from pathlib import Path

import pytest

from headrace.config import WorkerConfig, read
from headrace.core.errors import StartupError


def test_a_worker_is_told_where_its_harness_listens() -> None:
    assert read(WorkerConfig, []).chaos_socket is None
    assert read(WorkerConfig, ["--chaos-socket=/run/chaos.sock"]).chaos_socket == Path("/run/chaos.sock")


def test_help_does_not_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(WorkerConfig, ["--help"])
    shown = capsys.readouterr().out
    assert "--metrics-port" in shown
    assert "chaos" not in shown


def test_a_deployments_file_has_no_place_for_it(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("worker:\n  chaos_socket: /run/chaos.sock\n")
    with pytest.raises(StartupError, match="chaos_socket"):
        read(WorkerConfig, [f"--config={file}"])
