"""House rules that a machine can hold: sizes, names, and who reads the environment."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for root in ("services", "kernels") for path in (ROOT / root).rglob("*.py") if "rpc/v1" not in path.as_posix()
)
FILE_BUDGET, FILE_LIMIT, FUNCTION_LIMIT = 300, 400, 50
SHARE_OVER_BUDGET = 0.05
ATTICS = {"utils", "util", "common", "helpers", "manager", "misc"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_small() -> None:
    lines = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > FILE_LIMIT} == {}
    over_budget = [name for name, count in lines.items() if count > FILE_BUDGET]
    assert len(over_budget) <= SHARE_OVER_BUDGET * len(lines), over_budget


def test_functions_are_small() -> None:
    """Kernels that Triton compiles are one function each, whatever they do."""
    long = [
        f"{relative(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LIMIT
    ]
    assert long == []


def test_no_module_is_an_attic() -> None:
    assert [relative(path) for path in SOURCES if path.stem in ATTICS or path.parent.name in ATTICS] == []


def test_every_module_says_what_it_owns() -> None:
    silent = [
        relative(path)
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("word", ["os.environ", "os.getenv"])
def test_only_config_reads_the_environment(word: str) -> None:
    readers = [relative(path) for path in SOURCES if word in path.read_text()]
    assert [name for name in readers if name != "services/headrace/config.py"] == []
