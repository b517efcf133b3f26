"""What a start need not wait for: libraries that its first seconds do not use, and searches for garbage."""

import gc
import subprocess
import sys

import pytest

from headrace import cli

SLOW = ("torch", "ray", "grpc", "redis", "fastapi", "numpy", "httpx")


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        # Nothing of a cluster starts before this is imported.
        ("headrace.up", SLOW),
        ("headrace.bootstrap.frontend", ("torch", "ray", "headrace_kernels")),
        (
            "headrace.bootstrap.worker",
            ("torch", "tokenizers", "ray", "fastapi", "httpx", "ucxx", "triton", "headrace.chaos"),
        ),
    ],
)
def test_a_process_imports_nothing_slow_that_it_does_not_need_at_once(module: str, slow: tuple[str, ...]) -> None:
    look = f"import sys, headrace.cli, {module}; print(*sorted(set(sys.modules) & set({slow!r})))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["headrace.core.errors", "headrace.no_such_module"])
def test_garbage_is_looked_for_again_after_the_imports(module: str) -> None:
    try:
        try:
            cli._imported(module)
        except ModuleNotFoundError:
            assert module == "headrace.no_such_module"
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
