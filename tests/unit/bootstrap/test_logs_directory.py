"""Directories of logs: named where something was logged, and else not there any more."""

import tempfile
from pathlib import Path

import pytest

from headrace.bootstrap.logs_directory import put_away
from headrace.cli import main


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Nothing that makes a network is found, so that the command ends before any process could log.
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    return tmp_path


@pytest.mark.parametrize("command", ["chaos", "soak"])
def test_where_nothing_ran_no_directory_is_named_or_left(
    command: str, directories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--network=namespaces"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace: There can be no namespaces: ")
    assert len(said.splitlines()) == 1
    assert list(directories.iterdir()) == []


@pytest.mark.parametrize("command", ["chaos", "soak"])
def test_a_directory_that_somebody_chose_is_theirs(
    command: str, directories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = directories / "theirs"
    (theirs / "within").mkdir(parents=True)
    assert main([command, "--network=namespaces", f"--logs={theirs}"]) == 2
    assert "logs" not in capsys.readouterr().err
    assert (theirs / "within").is_dir()


@pytest.mark.parametrize(
    ("text", "keep", "stays"), [("a line", True, True), ("a line", False, False), ("", True, False)]
)
def test_logs_stay_where_they_are_wanted_and_say_something(text: str, keep: bool, stays: bool, tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    (directory / "model").mkdir(parents=True)
    (directory / "worker.log").write_text(text)
    assert put_away(directory, keep=keep) is stays
    assert directory.exists() is stays
