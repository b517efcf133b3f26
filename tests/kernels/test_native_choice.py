"""Which instruction set computes: the best that agrees with AVX2, or the one asked for; and what is said of it.

On the emulation, so that every processor with AVX2 shows all cases.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.random_gguf import write_random
from fixtures.tiny_model import VOCABULARY, tiny_files
from kernels.instruction_sets import MAY_BUILD
from structlog.testing import capture_logs
from structlog.typing import EventDict

import headrace.bench.engine
from headrace.bench.ceilings import Ceilings
from headrace.bench.engine import EngineBench
from headrace.core.errors import StartupError
from headrace.engine.build import build_engine
from headrace.engine.options import CPU_ISAS, EngineOptions
from headrace_kernels import native
from headrace_kernels.native import Format
from headrace_kernels.packed_tensor import packed_tensor

pytestmark = MAY_BUILD

NAMES = {"avx2": "AVX2", "avx512": "AVX-512 VNNI", "avx512bf16": "AVX-512 BF16 VNNI"}
Load = Callable[[], ctypes.CDLL]
# A processor, as the emulation's processor.cpp knows it.
WIDE, NARROW, SPOILT = "wide", "narrow", "spoilt"


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def processor(request: pytest.FixtureRequest, emulation: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels as they are loaded on the processor that the test names, WIDE by default."""
    monkeypatch.setenv("EMULATION", getattr(request, "param", WIDE))
    library = emulation()
    monkeypatch.setattr(native, "_library", lambda: library)


def on(processor: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("processor", [processor], indirect=True)


def start(path: Path, **options: Any) -> list[EventDict]:
    """What a worker logs as it builds its engine."""
    given = {"max_num_seqs": 4, "kv_cache_memory_bytes": 2**20, "threads": 1, "dtype": "float32", **options}
    with capture_logs() as lines:
        build_engine(tiny_files(path), VOCABULARY, EngineOptions(**given))
    return lines


def computing(lines: list[EventDict]) -> str:
    return str(next(line["kernels"] for line in lines if line["event"] == "engine.ready"))


def warnings(lines: list[EventDict]) -> list[EventDict]:
    return [line for line in lines if line["log_level"] == "warning"]


def test_every_key_is_an_option() -> None:
    assert {"auto", *NAMES} == set(CPU_ISAS)


@pytest.mark.usefixtures("processor")
def test_every_set_agrees_with_avx2() -> None:
    assert native.instruction_set() == NAMES["avx512"]
    assert native.refused() == ""
    for key, name in NAMES.items():
        native.choose(key)
        assert native.instruction_set() == name
        assert native.refused() == ""


@pytest.mark.parametrize("key", CPU_ISAS)
@pytest.mark.usefixtures("processor")
def test_the_start_says_which_one_computes(key: str, tmp_path: Path) -> None:
    lines = start(tmp_path, cpu_isa=key)
    assert computing(lines) == f"native {NAMES.get(key, NAMES['avx512'])}"
    assert warnings(lines) == []


@on(NARROW)
@pytest.mark.usefixtures("processor")
def test_what_the_processor_lacks_is_no_matter_until_it_is_asked_for(tmp_path: Path) -> None:
    lines = start(tmp_path)
    assert computing(lines) == "native AVX2"
    assert warnings(lines) == []
    for key in ("avx512", "avx512bf16"):
        with pytest.raises(StartupError, match=f"cannot use {key}: this processor lacks it") as refused:
            start(tmp_path, cpu_isa=key)
        assert refused.value.remedy == "Leave out --cpu-isa, and AVX2 is used."


@on(SPOILT)
@pytest.mark.usefixtures("processor")
def test_a_set_that_failed_its_trial_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    lines = start(tmp_path)
    assert computing(lines) == "native AVX2"
    (line,) = warnings(lines)
    assert line["event"] == "engine.instruction_set_refused"
    assert (line["refused"], line["used"]) == ("AVX-512 VNNI, AVX-512 BF16 VNNI", "AVX2")


@on(SPOILT)
@pytest.mark.usefixtures("processor")
def test_a_set_that_failed_its_trial_cannot_be_chosen(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot use avx512bf16: .* something else than AVX2") as refused:
        start(tmp_path, cpu_isa="avx512bf16")
    assert refused.value.remedy == "Leave out --cpu-isa, and AVX2 is used."
    assert native.refused() == "AVX-512 VNNI, AVX-512 BF16 VNNI"
    lines = start(tmp_path, cpu_isa="avx2")
    assert computing(lines) == "native AVX2"
    assert warnings(lines) == []  # who asked for AVX2 has what was asked for


@pytest.mark.usefixtures("processor")
def test_what_is_packed_keeps_its_set() -> None:
    """Another one would read tiles of another width."""
    native.choose("avx512")
    packed_tensor(torch.randn(8, 32), Format.F32)
    native.choose("avx512")
    for key in ("avx2", "avx512bf16"):
        with pytest.raises(ValueError, match=f"cannot use {key}: this process has packed"):
            native.choose(key)
    assert native.instruction_set() == NAMES["avx512"]


@pytest.mark.usefixtures("processor")
def test_a_set_for_what_torch_computes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--cpu-isa asks for .* do not compute in float16\. Do without"):
        start(tmp_path, cpu_isa="avx2", dtype="float16")


def test_a_set_without_the_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "built", lambda: None)
    with pytest.raises(StartupError, match=r"--cpu-isa asks for the native kernels, and they are not built"):
        start(tmp_path, cpu_isa="avx2")
    with pytest.raises(ValueError, match="cannot use avx2: they are not built"):
        native.choose("avx2")
    assert computing(start(tmp_path)) == "torch"


@pytest.mark.usefixtures("processor")
def test_the_benchmark_measures_its_ceilings_with_the_set_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = []

    def ceilings(*_: object) -> Ceilings:
        packed_tensor(torch.randn(8, 32), Format.F32)
        used.append(native.instruction_set())
        return Ceilings(1e12, 1e12, {"torch float32": 1e12})

    monkeypatch.setattr(headrace.bench.engine, "measure_ceilings", ceilings)
    options = EngineOptions(max_num_seqs=1, threads=1, cpu_isa="avx2")
    model = str(write_random(tmp_path / "random.gguf"))
    headrace.bench.engine.run(EngineBench(model, tmp_path, options, (1,), (20,), (16,), False))
    assert used == ["AVX2", "AVX2"]
    assert "native AVX2 kernels" in capsys.readouterr().out
