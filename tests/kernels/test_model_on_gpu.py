"""Whole tiny models on a GPU: the logits of torch on the CPU, and the same again out of a captured graph."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.on_device import moved
from fixtures.paged_model import BLOCKS, kv_layout
from fixtures.tiny_model import CONFIG, tiny_files
from torch import Tensor

from headrace.engine.batch import Batch, make_batch
from headrace.engine.build import load_model
from headrace.engine.models.decoder import Decoder
from headrace.engine.ops import PagedKv
from headrace.engine.runner import Span
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


def _model(directory: Path, config: ModelConfig, device: torch.device) -> tuple[Decoder, PagedKv]:
    layout = kv_layout(config)
    memory = torch.zeros((layout.layers, BLOCKS, layout.page_bytes), dtype=torch.uint8, device=device)
    decoder = moved(load_model(tiny_files(directory, config), torch.float32, 384), device)
    return decoder, PagedKv(memory, layout, torch.float32)


def _batch(kv: PagedKv, *spans: Span) -> Batch:
    """With its tensors made, on the device of the pages."""
    batch = make_batch(list(spans), kv.layout)
    with kv.pages.device:
        _ = batch.ids, batch.positions, batch.slots, batch.launch
    return batch


def _decoding(at: int) -> tuple[Span, ...]:
    """Eight sequences, which are all the rows there are."""
    return tuple(Span(TOKENS[index:], at, 1, [3 * index, 3 * index + 1, 3 * index + 2], None) for index in range(8))


def _logits(decoder: Decoder, kv: PagedKv, *spans: Span) -> Tensor:
    batch = _batch(kv, *spans)
    with torch.inference_mode():
        return decoder.logits(decoder.forward(batch, kv))[: batch.tokens].cpu()


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
def test_a_step_of_decoding_can_be_captured(config: ModelConfig, tmp_path: Path, cuda: torch.device) -> None:
    """Nothing of it waits for the host: a graph of one step, given the next one's numbers, says what that step does."""
    decoder, kv = _model(tmp_path, config, cuda)
    for index, span in enumerate(_decoding(30)):
        _logits(decoder, kv, Span(TOKENS[index:], 0, 30, span.blocks, None))
    batch = _batch(kv, *_decoding(30))
    with torch.inference_mode():
        expected_first = decoder.logits(decoder.forward(batch, kv)).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = decoder.logits(decoder.forward(batch, kv))
        graph.replay()
        assert torch.equal(captured, expected_first)
        following = _batch(kv, *_decoding(31))
        batch.ids.copy_(following.ids)
        batch.positions.copy_(following.positions)
        batch.slots.tokens.copy_(following.slots.tokens)
        batch.launch.positions.copy_(following.launch.positions)
        graph.replay()
        again = captured.clone()
        assert torch.equal(again, decoder.logits(decoder.forward(following, kv)))


@CONFIGS
def test_a_model_is_moved_whole(config: ModelConfig, tmp_path: Path) -> None:
    decoder = moved(load_model(tiny_files(tmp_path, config), torch.float32, 384), torch.device("meta"))
    layer = decoder.layers[1]
    held = (
        decoder.embedding.table,
        decoder.head.rows,
        decoder.norm.weight,
        decoder.ropes[0].sines,
        layer.norms[1].weight,
    )
    assert all(tensor.is_meta for tensor in (*held, layer.attention.projections.qkv, layer.feed_forward.down))
