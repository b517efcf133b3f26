"""The table of `make gpu`: what can be tried of it without a GPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench import gpu, gpu_decode
from bench.gpu_cases import Case, Sizes, cases
from fixtures.rerun_graph import RerunGraph
from fixtures.tiny_model import CONFIG, tiny_files

TINY = Sizes(
    rows=(3,),
    hidden=32,
    inner=48,
    heads=4,
    kv_heads=2,
    dim=16,
    layers=2,
    unit_blocks=2,
    batches=(((4, 1),), ((17, 1), (0, 3))),
)


def test_without_a_gpu_it_says_so_and_claims_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main() == 0
    assert capsys.readouterr().out == "There is no CUDA device here: nothing was run and nothing is claimed.\n"


def test_every_case_can_be_launched(device: torch.device) -> None:
    made = list(cases(TINY, device))
    for case in made:
        case.launch()
    names = {case.kernel.split()[0] for case in made}
    norms = {"rms_norm", "add_rms_norm", "rms_norm_add"}
    assert names == norms | {"gate", "rope", "kv_write", "pack_pages", "unpack_pages", "mixed_attention"}


def test_bytes_and_operations_of_attention(device: torch.device) -> None:
    """Of 1 row at 17 and 3 rows at 0: contexts of 18 and 3 tokens, and 18 + 1 + 2 + 3 pairs of query and key a head."""
    mixed = list(cases(TINY, device))[-1]
    assert mixed.shape == "1 x 1 at 17 + 1 x 3 at 0"
    assert mixed.bytes == (21 * 2 * 2 * 16 + 2 * 4 * 4 * 16) * 2
    assert mixed.flops == 2 * 2 * 4 * 16 * 24


def test_a_line_of_the_table() -> None:
    line = gpu.row(Case("a", "2 x 2", lambda: None, 10**9), 0.001, copied=2e12, multiplied=1e15)
    assert line == "| a | 2 x 2 | 1000.0 | 1000 | 50% | | |"
    line = gpu.row(Case("b", "8", lambda: None, 10**6, 10**12), 0.01, copied=2e12, multiplied=4e14)
    assert line == "| b | 8 | 10000.0 | 0 | 0% | 100.0 | 25% |"


@pytest.mark.usefixtures("on_cpu_tensors", "exact_products")
def test_decode_steps_that_are_timed_are_the_same_step(tmp_path: Path) -> None:
    files = tiny_files(tmp_path, replace(CONFIG, layers=1, heads=2, kv_heads=1))
    steps = list(gpu_decode.decode_steps(files, torch.device("cpu"), RerunGraph, (1, 3), 20))
    assert [(step.streams, step.context) for step in steps] == [(1, 20), (3, 20)]
    for step in steps:
        assert step.eager().shape == (step.streams, CONFIG.vocab_size)
        assert torch.equal(step.eager(), step.captured())
    assert steps[1].row(0.003, 0.001) == "| tiny | 3 | 20 | 3.00 | 1.00 | 3.00 |"
