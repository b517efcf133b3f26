"""Which kernels the engine's operations run: Triton's on a GPU, torch's elsewhere, with the same result."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fixtures.tiny_model import CONFIG, tiny_files
from torch import Tensor
from torch._subclasses import FakeTensorMode

from headrace.core.layout import KvLayout
from headrace.engine import ops
from headrace.engine.batch import make_batch
from headrace.engine.build import load_model
from headrace.engine.page_memory import PageMemory
from headrace.engine.runner import Span

LAYOUT = KvLayout(CONFIG.layers, CONFIG.kv_heads, CONFIG.head_dim, 16, "float32")
BLOCKS = 6
TOKENS = [3 + (7 * index) % 290 for index in range(40)]

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from headrace.core.layout import KvLayout
from headrace.engine import ops
from headrace.engine.batch import make_batch
from headrace.engine.runner import Span

layout = KvLayout(layers=1, kv_heads=2, head_dim=8, block_tokens=16, dtype="float32")
kv = ops.PagedKv(torch.zeros((1, 4, layout.page_bytes), dtype=torch.uint8), layout, torch.float32)
batch = make_batch([Span([1, 2, 3], 2, 1, [3], None)], layout)
kv.write(0, batch.slots, torch.ones(1, 2, 8), torch.ones(1, 2, 8))
spec = ops.AttentionSpec(1.0)
assert ops.attention(torch.ones(1, 4, 8), kv, 0, spec, batch.contexts, rows=batch.rows).shape == (8, 32)
unit = torch.empty((1, 2, layout.page_bytes), dtype=torch.uint8)
ops.pack_pages(torch.zeros((1, 4, layout.page_bytes), dtype=torch.uint8), torch.tensor([3, 0]), unit)
"""


@pytest.fixture
def on_cpu_tensors(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Iterator[None]:
    """Triton's kernels for every tensor: the interpreter takes those of a CPU."""
    if device.type != "cpu":
        pytest.skip("CPU tensors need Triton's interpreter: set TRITON_INTERPRET=1.")
    with monkeypatch.context() as patch:
        patch.setattr(ops, "picks_triton", lambda tensor: True)
        yield


def _run(directory: Path) -> tuple[Tensor, Tensor]:
    """Logits and pages after a chunk of one sequence, then one token of it beside one of another."""
    model = load_model(tiny_files(directory), torch.float32, 512)
    memory = torch.from_numpy(PageMemory(LAYOUT, BLOCKS).bytes)
    kv = ops.PagedKv(memory, LAYOUT, torch.float32)
    steps = [
        [Span(TOKENS, 0, 1, [4], None), Span(TOKENS, 0, 32, [5, 1, 3], None)],
        [Span(TOKENS, 1, 1, [4], None), Span(TOKENS, 32, 1, [5, 1, 3], None)],
    ]
    with torch.inference_mode():
        batches = [make_batch(spans, LAYOUT) for spans in steps]
        logits = [model.logits(model.forward(batch, kv))[: batch.tokens] for batch in batches]
    return torch.cat(logits), memory


def test_a_tensor_picks_by_where_it_lies() -> None:
    assert not ops.picks_triton(torch.empty(1))
    with FakeTensorMode():
        assert ops.picks_triton(torch.empty(1, device="cuda"))


def test_a_model_says_the_same_with_both(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    logits, pages = _run(tmp_path)
    request.getfixturevalue("on_cpu_tensors")
    triton_logits, triton_pages = _run(tmp_path)
    assert not torch.equal(triton_logits, logits), "the same kernels ran twice: their last bits would differ"
    torch.testing.assert_close(triton_logits, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(triton_pages.view(torch.float32), pages.view(torch.float32), rtol=1e-4, atol=1e-4)


def _pack_and_back() -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(2)
    pool = torch.randint(0, 256, (3, BLOCKS, 64), dtype=torch.uint8, generator=noise)
    unit = torch.zeros((3, 2, 64), dtype=torch.uint8)
    ops.pack_pages(pool, torch.tensor([4, 1]), unit)
    ops.unpack_pages(unit, pool, torch.tensor([0, 3]))
    return unit, pool


def test_pages_move_the_same_with_both(request: pytest.FixtureRequest) -> None:
    with_torch = _pack_and_back()
    request.getfixturevalue("on_cpu_tensors")
    for mine, its in zip(_pack_and_back(), with_torch, strict=True):
        assert torch.equal(mine, its)


def test_a_machine_without_triton_serves_on_its_cpu() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True, timeout=50)
