"""Whole tiny models on a GPU: what torch says on the CPU, the same out of captured graphs, and a whole engine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.engine_driver import generate, hand_over, make_job, prompt
from fixtures.paged_model import BLOCKS, kv_layout
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files
from torch import Tensor

from headrace.engine.batch import make_batch
from headrace.engine.build import build_engine
from headrace.engine.captured_decode import CapturedDecode
from headrace.engine.cuda_graph import CudaGraphs
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions
from headrace.engine.runner import Span
from headrace.engine.torch_build import load_model
from headrace.engine.torch_decoder import TorchDecoder
from headrace.engine.torch_model import TensorModel
from headrace.modelfiles.files import ModelConfig

GEMMA = replace(
    CONFIG,
    architecture="gemma3_text",
    activation="gelu_tanh",
    windows=(20, 0),
    attention_softcap=3.0,
    logit_softcap=5.0,
    local_rope_theta=1000.0,
)
CONFIGS = pytest.mark.parametrize("config", [CONFIG, GEMMA], ids=["llama", "gemma"])
TOKENS = [3 + (7 * index) % 290 for index in range(80)]
CPU = torch.device("cpu")


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("There is no CUDA device here, or TRITON_INTERPRET=1 keeps the kernels off it.")
    return device


def _model(directory: Path, config: ModelConfig, device: torch.device) -> tuple[TorchDecoder, PagedKv]:
    layout = kv_layout(config)
    memory = torch.zeros((layout.layers, BLOCKS, layout.page_bytes), dtype=torch.uint8, device=device)
    decoder = load_model(tiny_files(directory, config), torch.float32, 384, device=device)
    return decoder, PagedKv(memory, layout, torch.float32)


def _decoding(at: int, count: int = 8) -> tuple[Span, ...]:
    """One token each of `count` sequences."""
    return tuple(Span(TOKENS[index:], at, 1, [3 * index, 3 * index + 1, 3 * index + 2], None) for index in range(count))


def _logits(model: TensorModel, kv: PagedKv, *spans: Span) -> Tensor:
    batch = make_batch(list(spans), kv.layout, device=kv.device)
    with torch.inference_mode():
        return model.logits(model.forward(batch, kv))[: batch.tokens].cpu()


@CONFIGS
def test_a_model_says_what_it_says_on_a_cpu(config: ModelConfig, tmp_path: Path, cuda: torch.device) -> None:
    steps = (
        (Span(TOKENS, 0, 1, [4], None), Span(TOKENS, 0, 37, [5, 1, 3], None)),
        (Span(TOKENS, 1, 1, [4], None), Span(TOKENS, 37, 1, [5, 1, 3], None)),
    )
    on_gpu, on_cpu = (_model(tmp_path, config, device) for device in (cuda, CPU))
    for spans in steps:
        torch.testing.assert_close(_logits(*on_gpu, *spans), _logits(*on_cpu, *spans), rtol=1e-3, atol=1e-3)


@CONFIGS
def test_captured_steps_are_bit_equal(config: ModelConfig, tmp_path: Path, cuda: torch.device) -> None:
    """Of every batch size, one after another; a context's end crosses a page on the way."""
    decoder, kv = _model(tmp_path, config, cuda)
    for index, span in enumerate(_decoding(30)):
        _logits(decoder, kv, Span(TOKENS[index:], 0, 30, span.blocks, None))
    before = kv.pages.clone()
    captured = CapturedDecode(decoder, kv, sequences=8, context=48, make_graph=CudaGraphs())
    assert torch.equal(kv.pages, before), "a capture writes nothing"
    for at, count in enumerate((8, 1, 3, 8, 5, 2, 7)):
        spans = _decoding(30 + at, count)
        assert torch.equal(_logits(captured, kv, *spans), _logits(decoder, kv, *spans))


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_an_engine_says_what_it_says_on_a_cpu(enforce_eager: bool, tmp_path: Path, cuda: torch.device) -> None:
    """Prompts in chunks beside decode steps, and pages handed over between GPU and CPU."""
    files = tiny_files(tmp_path)
    on_cpu = EngineOptions(dtype="float32", kv_cache_memory_bytes=2**20, kernels="torch", max_num_seqs=16)
    options = replace(on_cpu, device=cuda.type, enforce_eager=enforce_eager)
    host, device = (build_engine(files, VOCABULARY, each) for each in (on_cpu, options))
    jobs = [make_job(str(index), prompt(index, 9 + 13 * index), max_tokens=20) for index in range(10)]
    expected = generate(host, *jobs)
    assert generate(device, *jobs) == expected
    assert hand_over(host, device, "there", jobs[2].tokens, max_tokens=20) == expected[2]
    assert hand_over(device, host, "back", jobs[3].tokens, max_tokens=20) == expected[3]
    for engine in (host, device):
        engine.check()
