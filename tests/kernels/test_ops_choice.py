"""Which kernels the engine's operations run: Triton's on a GPU, torch's elsewhere, with the same result."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.paged_model import PagedModel
from fixtures.tiny_model import CONFIG, tiny_files
from torch import Tensor
from torch._subclasses import FakeTensorMode

from headrace.engine import ops
from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelConfig
from headrace_kernels import gate, kv_write, mixed_attention, rms_norm, rope

LLAMA = CONFIG
GEMMA = replace(
    CONFIG,
    architecture="gemma3_text",
    activation="gelu_tanh",
    windows=(9, 0),
    attention_softcap=3.0,
    logit_softcap=5.0,
    attention_scale=0.2,
    rotary_dim=8,
    local_rope_theta=1000.0,
    tied_embeddings=True,
)
KERNELS = {"add_rms_norm", "gate", "kv_write", "mixed_attention", "rms_norm", "rms_norm_add", "rope"}
BLOCKS = 6
TOKENS = [3 + (7 * index) % 290 for index in range(40)]

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from headrace.core.layout import KvLayout
from headrace.engine import ops
from headrace.engine.batch import make_batch
from headrace.engine.models.attention import AttentionSpec
from headrace.engine.runner import Span

layout = KvLayout(layers=1, kv_heads=2, head_dim=8, block_tokens=16, dtype="float32")
kv = ops.PagedKv(torch.zeros((1, 4, layout.page_bytes), dtype=torch.uint8), layout, torch.float32)
batch = make_batch([Span([1, 2, 3], 2, 1, [3], None)], layout)
kv.write(0, batch.slots, torch.ones(1, 2, 8), torch.ones(1, 2, 8))
spec = AttentionSpec(1.0)
assert ops.attention(torch.ones(1, 4, 8), kv, 0, spec, batch).shape == (8, 32)
rows, weight, angles = torch.ones(8, 16), torch.ones(16), torch.ones(8, 1, 16)
ops.rms_norm(rows, weight, 1e-5)
ops.add_rms_norm(rows, rows, weight, 1e-5)
ops.rms_norm_add(rows, rows, weight, 1e-5)
ops.rotate(rows[:, None], angles, angles)
ops.gate(rows, "silu")
unit = torch.empty((1, 2, layout.page_bytes), dtype=torch.uint8)
ops.pack_pages(torch.zeros((1, 4, layout.page_bytes), dtype=torch.uint8), torch.tensor([3, 0]), unit)
"""


def _model(directory: Path, config: ModelConfig, *, batch_invariant: bool = False) -> PagedModel:
    return PagedModel(tiny_files(directory, config), batch_invariant=batch_invariant)


def _run(model: PagedModel) -> tuple[Tensor, Tensor]:
    """Logits and pages after a chunk of one sequence beside one token of another, then one token of each."""
    steps = [
        [Span(TOKENS, 0, 1, [4], None), Span(TOKENS, 0, 16, [5, 1], None)],
        [Span(TOKENS, 1, 1, [4], None), Span(TOKENS, 16, 1, [5, 1], None)],
    ]
    return torch.cat([model.run(*spans) for spans in steps]), model.kv.pages.clone()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kernel behind the door was called."""
    calls: Counter[str] = Counter()
    for module in (gate, kv_write, mixed_attention, rms_norm, rope):
        for name in KERNELS & vars(module).keys():
            monkeypatch.setattr(module, name, _counted(calls, name, getattr(module, name)))
    return calls


def _counted(calls: Counter[str], name: str, kernel: Callable[..., None]) -> Callable[..., None]:
    def call(*args: object, **kwargs: object) -> None:
        calls[name] += 1
        kernel(*args, **kwargs)

    return call


def test_a_tensor_picks_by_where_it_lies() -> None:
    assert not ops.picks_triton(torch.empty(1))
    with FakeTensorMode():
        assert ops.picks_triton(torch.empty(1, device="cuda"))


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma"])
def test_a_model_says_the_same_with_both(
    config: ModelConfig, tmp_path: Path, launched: Counter[str], request: pytest.FixtureRequest
) -> None:
    model = _model(tmp_path, config)
    logits, pages = _run(model)
    assert not launched
    request.getfixturevalue("on_cpu_tensors")
    triton_logits, triton_pages = _run(model)
    gemma = config is GEMMA
    # Two steps of two layers. Of norms a Llama's layer has one alone and one of a sum, a Gemma's those of queries and
    # keys, two alone and two in front of a sum; and there is one before the head.
    per_layer = {"kv_write": 1, "rope": 1, "mixed_attention": 1, "gate": 1, "rms_norm": 3 if gemma else 1}
    per_layer |= {"rms_norm_add": 2} if gemma else {"add_rms_norm": 1}
    assert launched == Counter(
        {name: 4 * count for name, count in per_layer.items()} | {"rms_norm": 14 if gemma else 6}
    )
    torch.testing.assert_close(triton_logits, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(triton_pages, pages, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("on_cpu_tensors", "exact_products")
@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma"])
def test_a_model_says_the_same_bits_alone_and_in_company(config: ModelConfig, tmp_path: Path) -> None:
    model = _model(tmp_path, replace(config, layers=1), batch_invariant=True)
    other = TOKENS[::-1]
    alone = model.run(Span(TOKENS, 0, 18, [5, 1], None))
    pieces = [
        model.run(Span(TOKENS, 0, 5, [2, 9], None), Span(other, 0, 3, [7], None))[:5],
        model.run(Span(other, 3, 1, [7], None), Span(TOKENS, 5, 12, [2, 9], None))[1:],
        model.run(Span(other, 4, 1, [7], None), Span(TOKENS, 17, 1, [2, 9], None))[1:],
    ]
    assert torch.equal(torch.cat(pieces), alone)


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
