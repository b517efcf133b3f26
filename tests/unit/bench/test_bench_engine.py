"""`headrace bench engine` on a tiny model: the rows asked for, figures that are possible, and what is refused."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.random_gguf import CONTEXT, INNER, KV_HEADS, LAYERS, WIDTH, write_random
from fixtures.tiny_model import CONFIG, tiny_files

import headrace.bench.engine
from headrace.bench.ceilings import Ceilings
from headrace.bench.drive import Driver, Effort
from headrace.bench.watched_runner import WatchedRunner
from headrace.cli import main
from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.modelfiles.resolve import resolve
from headrace_kernels import native

FLAGS = ("--batch", "1,3", "--context", "20", "--prefill", "16,200", "--threads", "1")
NATIVE = native.instruction_set() is not None
KINDS = {"embed", "norm", "linear", "rope", "attend", "gate", "head"}
# Of a token: keys and values of all layers in bfloat16.
KV_BYTES = LAYERS * 2 * KV_HEADS * (WIDTH // 4) * 2
LAYER_VALUES = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * (WIDTH // 4 * KV_HEADS) + 3 * WIDTH * INNER)


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    """A command has a process to itself and leaves torch's threads as it set them."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("model") / "random.gguf")


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the machine takes seconds; one test does."""
    products = {"torch float32": 1e12, "native int8": 2e12}
    monkeypatch.setattr(headrace.bench.engine, "measure_ceilings", lambda *_: Ceilings(1e12, 1e12, products))


def test_the_command_measures_what_it_was_asked(model: Path) -> None:
    """As a user runs it, machine's ceilings and all."""
    flags = ("--quantization", "int4") if NATIVE else ()
    command = [sys.executable, "-m", "headrace.cli", "bench", "engine", "--model", str(model), "--json", *FLAGS]
    done = subprocess.run(
        [*command, *flags, "--cache-dir", str(model.parent)], capture_output=True, timeout=110, check=True
    )
    report = json.loads(done.stdout)
    ceilings = report["ceilings"]
    assert min(ceilings["read"], ceilings["copy"], *ceilings["products"].values()) > 0
    assert report["limits"] == {
        "bandwidth": max(ceilings["read"], ceilings["copy"]),
        "products": max(ceilings["products"].values()) if NATIVE else ceilings["products"]["torch float32"],
    }
    _require_possible(report, "int4" if NATIVE else "bfloat16", KINDS if NATIVE else {"torch"})


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_all_figures_are_there_whoever_computes(
    kernels: str, model: Path, quick_ceilings: None, capsys: pytest.CaptureFixture[str]
) -> None:
    if kernels == "native" and not NATIVE:
        pytest.skip("The native kernels are not built here.")
    report = _reported(capsys, model, "--kernels", kernels)
    assert report["limits"] == {"bandwidth": 1e12, "products": 1e12}
    formats, kinds = ("bf16", KINDS) if kernels == "native" else ("bfloat16", {"torch"})
    _require_possible(report, formats, kinds)


def _reported(capsys: pytest.CaptureFixture[str], model: Path, *flags: str) -> Mapping[str, Any]:
    command = ["bench", "engine", "--model", str(model), "--json", *FLAGS, *flags]
    assert main([*command, "--cache-dir", str(model.parent)]) == 0
    report: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return report


def _require_possible(report: Mapping[str, Any], weights: str, kinds: set[str]) -> None:
    rows, limits = report["rows"], report["limits"]
    wanted = [("prefill", 1, 16), ("prefill", 1, 200), ("decode", 1, 20), ("decode", 3, 20)]
    assert [(row["work"], row["batch"], row["context"]) for row in rows] == wanted
    assert (report["dtype"], report["formats"], report["threads"]) == ("bfloat16", [weights], 1)
    assert [row["tokens"] for row in rows] == [16, 100, 1, 3]
    assert [row["bytes"]["kv_written"] for row in rows] == [KV_BYTES * row["tokens"] for row in rows]
    logits = [row["bytes"]["logits"] for row in rows]
    assert logits == [logits[0] * drawn for drawn in (1, 0.5, 1, 3)]
    for row in rows:
        assert set(row["spent_ms"]) == {*kinds, "sampling", "python"}
        assert min(row["spent_ms"].values()) >= 0  # nothing is seen by two clocks
        assert row["spent_ms"]["sampling"] > 0
        assert row["of_bandwidth"] == pytest.approx(row["bytes"]["total"] / row["ms"] * 1e3 / limits["bandwidth"])
        assert row["of_products"] == pytest.approx(row["operations"] / row["ms"] * 1e3 / limits["products"])
    for row in rows[2:]:
        assert 20 < row["bytes"]["kv_read"] / KV_BYTES / row["batch"] < 40  # of the context and what was written since


def test_weights_are_counted_as_they_are_packed(
    model: Path, quick_ceilings: None, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = _reported(capsys, model)["rows"][-1]["bytes"]["weights"]
    # The vocabulary is no multiple of the tiles that a matrix is packed in, so the head takes a little more.
    assert 1.0 <= plain / (2 * (LAYER_VALUES + _vocabulary(model) * WIDTH)) < 1.1
    if NATIVE:
        rounded = _reported(capsys, model, "--quantization", "int4")
        assert rounded["rows"][-1]["bytes"]["weights"] / plain == pytest.approx(0.625 / 2)
        assert rounded["limits"]["products"] == 2e12


def _vocabulary(model: Path) -> int:
    return resolve(str(model), model.parent).config.vocab_size


def test_people_get_tables(model: Path, quick_ceilings: None, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "engine", "--model", str(model), "--kernels", "torch", *FLAGS]
    assert main([*command, "--cache-dir", str(model.parent)]) == 0
    out = capsys.readouterr().out
    assert "weights bfloat16, KV bfloat16, torch kernels, 1 threads" in out
    names = ["prefill 16 ", "prefill 200 in 2 ", "decode 1 x 20 ", "decode 3 x 20 "]
    rows = [line for line in out.splitlines() if line.startswith(("prefill", "decode"))]
    assert all(row.startswith(name) for row, name in zip(rows, 2 * names, strict=True))
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--context", str(CONTEXT)), f"exceed the model's {CONTEXT}"),
        (("--prefill", str(CONTEXT)), f"exceed the model's {CONTEXT}"),
        (("--batch", "0"), "greater than 0"),
        (("--cpu-isa", "avx2", "--kernels", "torch"), "cpu_isa needs the native kernels"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model: Path, flags: tuple[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "engine", "--model", str(model), "--cache-dir", str(model.parent), "--batch", "1"]
    assert main([*command, "--context", "8", "--prefill", "8", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_steps_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """Streams stand behind written pages; prompts come in pieces; what is reported is what the engine ran."""
    runners: list[WatchedRunner] = []

    def watched(*parts: Any) -> WatchedRunner:
        runners.append(WatchedRunner(*parts))
        return runners[-1]

    options = EngineOptions(
        max_num_seqs=2, max_num_batched_tokens=32, kv_cache_memory_bytes=2**20, enable_prefix_caching=False, threads=1
    )
    files = tiny_files(tmp_path)
    engine = build_engine(files, Vocabulary(CONFIG.vocab_size, frozenset()), options, watched)
    driver = Driver(engine, runners[0], CONFIG.vocab_size, Effort(prompts=2, warm=2, steps=3, detailed=1))
    prompt = driver.prefill(70)
    assert [step.spans for step in prompt.steps] == [((0, 32),), ((32, 32),), ((64, 6),)]
    assert [step.drawn for step in prompt.steps] == [0, 0, 1]
    stream = driver.decode(2, 40)
    assert [step.spans for step in stream.steps] == [((start, 1), (start, 1)) for start in (42, 43, 44)]
    assert [step.drawn for step in stream.steps] == [2, 2, 2]
    assert len(stream.seconds) == 3
    assert min(stream.seconds) > 0
    engine.check()
    written = bytearray(engine.pages.layout.block_bytes)
    full = 0
    for block in range(engine.info.num_blocks):
        engine.pages.read((block,), memoryview(written))
        full += 0 not in written[:: len(written) // 8]
    assert full >= 4  # two streams, two whole blocks each
