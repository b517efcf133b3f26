"""A build without a compiler: torch computes, and the suite passes but for the tests of what was not built."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
# Of the engine, its border, the kernels and the model.
SLICE = (
    "tests/unit/engine/test_engine_llama.py",
    "tests/unit/engine/test_engine_pages.py",
    "tests/unit/engine/test_engine_parallel.py",
    "tests/unit/engine/test_engine_sample_logprobs.py",
    "tests/unit/engine/test_batch_invariance.py::test_the_check_stays_within_a_short_context",
    "tests/kernels/test_native_attention.py",
    "tests/kernels/test_native_choice.py",
    "tests/kernels/test_native_emulated.py",
    "tests/kernels/test_native_timings.py",
    "tests/kernels/test_page_copy.py",
    "tests/contract/test_row_kernels.py",
    "tests/contract/test_engine_contract.py::TestLocalJobs::test_life",
    "tests/contract/test_engine_contract.py::TestLocalJobs::test_resuming_equals_going_on",
    "tests/oracle/test_architectures.py::test_logits_equal_transformers",
    "tests/oracle/test_native_architectures.py",
)
# Whole files that say nothing without the kernels.
ONLY_NATIVE = {
    *("test_native_attention", "test_native_emulated", "test_native_timings", "test_native_architectures"),
}
REASON = "The native kernels are not built here."
QUESTION = "from headrace_kernels import native; print(native.__file__, native.instruction_set(), [native.refused()])"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of processes that import the packages as such a build leaves them."""
    room = tmp_path_factory.mktemp("build")
    absent = {"CC": str(room / "no-compiler"), "CXX": str(room / "no-compiler")}
    setup = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(room)]
    done = subprocess.run(
        [*setup, "build", "--build-base", str(room), "--build-lib", str(room / "lib")],
        cwd=ROOT,
        env={**os.environ, **absent},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**inherited, "PYTHONPATH": str(room / "lib")}


def test_such_a_build_has_no_native_kernels(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUESTION], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    place, *rest = done.stdout.split()
    assert Path(place).is_relative_to(environment["PYTHONPATH"])
    assert rest == ["None", "['']"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one test. skipped: why; None if it passed."""

    file: str
    skipped: str | None


@pytest.mark.timeout(300)
def test_the_engine_passes_its_tests_on_torch(environment: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *SLICE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    outcomes = _outcomes(report)
    assert {each.file for each in outcomes} == {Path(name.partition("::")[0]).stem for name in SLICE}
    for each in outcomes:
        assert each.skipped in (None, REASON), each
        assert each.skipped is not None or each.file not in ONLY_NATIVE, each
    ran = {each.file for each in outcomes if each.skipped is None}
    assert ran == {each.file for each in outcomes} - ONLY_NATIVE


def _outcomes(report: Path) -> list[Outcome]:
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        reason = None if skipped is None else str(skipped.get("message"))
        # tests.contract.test_engine_contract.TestLocalJobs
        file = next(part for part in case.get("classname", "").split(".") if part.startswith("test_"))
        outcomes.append(Outcome(file, reason))
    return outcomes
