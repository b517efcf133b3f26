"""Where there can be no namespaces: what is told names what is missing here, and nothing that is there already."""

import asyncio
import os
from pathlib import Path

import pytest

from headrace.chaos.cells import Fault, matrix
from headrace.chaos.ground import without_namespaces
from headrace.chaos.run import Plan, run
from headrace.core.errors import StartupError


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which programs are found."""
    directory = tmp_path / "tools"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root is told that first")
def test_root_is_told_what_to_install(tools: Path) -> None:
    with pytest.raises(StartupError) as told:
        without_namespaces("namespaces")
    assert told.value.remedy == "Install iproute2, or give --network=host."
    (tools / "ip").touch(mode=0o755)
    assert without_namespaces("namespaces") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root has become it already")
def test_others_are_told_to_become_root(tools: Path) -> None:
    with pytest.raises(StartupError) as told:
        without_namespaces("namespaces")
    assert told.value.remedy == "Become root, or give --network=host."


def test_a_run_of_which_nothing_can_be_played_is_refused(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    cells = [cell for cell in matrix() if cell.fault is Fault.PARTITION]
    with pytest.raises(StartupError, match=r"^No case .* can be played: processes share .*") as told:
        asyncio.run(run(Plan(cells, "", "host", logs, "", {})))
    assert told.value.remedy == "Leave --network=host out, or choose other faults than partition."
    assert not logs.exists()
