"""The committed modules are what proto/ gives, and the check that says so can fail."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = Path("services/headrace/rpc/v1")


def check(root: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(root / "proto" / "generate.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def copy(into: Path) -> Path:
    shutil.copytree(ROOT / "proto", into / "proto")
    shutil.copytree(ROOT / PACKAGE, into / PACKAGE)
    return into


def test_committed_modules_are_up_to_date() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stderr


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    root = copy(tmp_path)
    source = root / "proto/headrace/rpc/v1/ticket.proto"
    source.write_text(source.read_text().replace("string address = 13;", "string address = 13;\n  string more = 99;"))
    result = check(root)
    assert result.returncode == 1
    assert "ticket_pb2.py" in result.stderr
    assert "make proto" in result.stderr


def test_a_superfluous_module_is_noticed(tmp_path: Path) -> None:
    root = copy(tmp_path)
    (root / PACKAGE / "old_pb2.py").write_text("")
    result = check(root)
    assert result.returncode == 1
    assert "old_pb2.py" in result.stderr
