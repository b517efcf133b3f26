"""Llama over pages against transformers' LlamaForCausalLM on the same random weights."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.paged_model import PagedModel, kv_layout
from fixtures.tiny_model import CONFIG, tiny_files, tiny_weights

from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelConfig

TIED = replace(CONFIG, tied_embeddings=True)
LAYOUT = kv_layout(CONFIG)
TOKENS = [3 + (7 * index) % 290 for index in range(77)]
# Scattered and out of order, so that no page is where a contiguous cache would have it.
BLOCKS = [11, 2, 14, 5, 8]
TOLERANCE = 1e-4


def _paged(directory: Path, config: ModelConfig = CONFIG) -> PagedModel:
    return PagedModel(tiny_files(directory, config))


def _span(start: int, count: int, tokens: list[int] = TOKENS, blocks: list[int] = BLOCKS) -> Span:
    return Span(tokens, start, count, blocks, None)


def _reference(config: ModelConfig = CONFIG) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_dim,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                max_position_embeddings=config.max_position,
                tie_word_embeddings=config.tied_embeddings,
            )
        ).eval()
        model.load_state_dict({name: torch.from_numpy(v) for name, v in tiny_weights(config).items()}, strict=False)
        model.tie_weights()
        return model


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["untied", "tied"])
def test_logits_equal_transformers(tmp_path: Path, config: ModelConfig) -> None:
    with torch.inference_mode():
        expected = _reference(config)(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(_paged(tmp_path, config).run(_span(0, 77)), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("cuts", [[16, 32, 77], [1, 2, 3, 77], [76, 77], list(range(1, 78))], ids=str)
def test_chunks_equal_the_whole(tmp_path: Path, cuts: list[int]) -> None:
    whole, chunked = _paged(tmp_path).run(_span(0, 77)), _paged(tmp_path)
    pieces = [chunked.run(_span(start, end - start)) for start, end in zip([0, *cuts], cuts, strict=False)]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=TOLERANCE, rtol=0)


def test_pages_may_lie_anywhere(tmp_path: Path) -> None:
    here, there = _paged(tmp_path), _paged(tmp_path)
    assert torch.equal(here.run(_span(0, 77)), there.run(_span(0, 77, blocks=[0, 1, 2, 3, 4])))


def test_a_batch_of_mixed_spans_equals_each_alone(tmp_path: Path) -> None:
    together, alone = _paged(tmp_path), _paged(tmp_path)
    others = [index + 5 for index in TOKENS]
    for model in (together, alone):
        model.run(_span(0, 40))
        model.run(_span(0, 9, others, [0]))
    spans = [_span(40, 1), _span(9, 1, others, [0]), _span(0, 33, TOKENS[::-1], [1, 3, 4])]
    mixed = together.run(*spans)
    torch.testing.assert_close(mixed, torch.cat([alone.run(span) for span in spans]), atol=TOLERANCE, rtol=0)


def test_copied_pages_continue_alike(tmp_path: Path) -> None:
    source, target = _paged(tmp_path), _paged(tmp_path)
    source.run(_span(0, 76))
    buffer = bytearray(5 * LAYOUT.block_bytes)
    source.memory.read(BLOCKS, memoryview(buffer))
    target.memory.write([0, 9, 3, 12, 1], memoryview(buffer))
    moved = target.run(_span(76, 1, blocks=[0, 9, 3, 12, 1]))
    assert torch.equal(moved, source.run(_span(76, 1)))


def test_a_page_is_laid_out_as_the_contract_says(tmp_path: Path) -> None:
    """[layer][block][kv head][K,V][token][dim]: the values of token 3 in head 1 stand where the layout puts them."""
    paged = _paged(tmp_path)
    paged.run(_span(0, 20))
    buffer = bytearray(LAYOUT.block_bytes)
    paged.memory.read([BLOCKS[0]], memoryview(buffer))
    pages = torch.frombuffer(buffer, dtype=torch.float32).view(2, 1, 2, 2, 16, 16)
    with torch.inference_mode():
        cache = _reference()(torch.tensor([TOKENS[:20]]), use_cache=True).past_key_values
    for layer in range(2):
        keys, values = cache.layers[layer].keys[0], cache.layers[layer].values[0]
        torch.testing.assert_close(pages[layer, 0, :, 0], keys[:, :16], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(pages[layer, 0, :, 1], values[:, :16], atol=TOLERANCE, rtol=0)
