"""Every architecture and rotary variant against transformers, on tiny random checkpoints made here and now."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fixtures.engine_driver import generate, make_job
from fixtures.measured import TORCH_KEEPS_ITS_BITS
from fixtures.paged_model import PagedModel
from fixtures.ranks import ThreadRank, run_ranks
from fixtures.tiny_checkpoint import WINDOW, Case, Checkpoint, make_checkpoint

from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.models.architectures import LOADERS
from headrace.engine.options import EngineOptions
from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.support import ARCHITECTURES, ROPE_VARIANTS

PROMPT = [3 + (7 * index) % 290 for index in range(77)]
ANSWER = 32
# Scattered and out of order, so that no page is where a contiguous cache would have it.
BLOCKS = [11, 2, 14, 5, 8, 0, 21]
TOLERANCE = 1e-4


def _rope(variant: str, **numbers: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": variant, "rope_theta": 10_000.0, **numbers}}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
_LONGROPE = {
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.0, 2.5, 6.0],
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
}
_GEMMA = {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 24, "num_hidden_layers": 3}
_GEMMA3 = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}

CASES = [
    Case("llama", "Llama", {"head_dim": 8}),
    Case("llama tied", "Llama", {"tie_word_embeddings": True}),
    Case("llama with biases", "Llama", {"attention_bias": True, "mlp_bias": True}),
    Case("llama linear", "Llama", _rope("linear", factor=4.0)),
    Case("llama llama3", "Llama", {"head_dim": 16, **_rope("llama3", factor=8.0, **_LLAMA3)}),
    Case("llama yarn", "Llama", {"head_dim": 16, **_rope("yarn", factor=4.0, original_max_position_embeddings=64)}),
    Case(
        "llama yarn with every number",
        "Llama",
        {
            "head_dim": 16,
            **_rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=64,
                beta_fast=4.0,
                beta_slow=0.5,
                mscale=0.7,
                mscale_all_dim=1.2,
                truncate=False,
            ),
        },
    ),
    Case(
        "llama yarn with an attention factor",
        "Llama",
        _rope("yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.3),
    ),
    Case("mistral", "Mistral", {"sliding_window": WINDOW}),
    Case("mistral without window", "Mistral", {"sliding_window": None, "head_dim": 8}),
    Case("qwen2", "Qwen2"),
    Case(
        "qwen2 with windows",
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    Case("qwen3", "Qwen3", {"head_dim": 16}),
    Case("qwen3 with biases", "Qwen3", {"head_dim": 8, "attention_bias": True}),
    Case("gemma2", "Gemma2", {**_GEMMA, "tie_word_embeddings": True}),
    Case(
        "gemma2 with low caps",
        "Gemma2",
        {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    Case("gemma3", "Gemma3", {**_GEMMA, **_GEMMA3, "tie_word_embeddings": True}, config="Gemma3TextConfig"),
    Case(
        "gemma3 scaled",
        "Gemma3",
        {
            **_GEMMA,
            **_GEMMA3,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        config="Gemma3TextConfig",
    ),
    Case("phi3", "Phi3"),
    Case("phi3 with window", "Phi3", {"sliding_window": WINDOW, **_rope("default", partial_rotary_factor=0.5)}),
    Case(
        "phi3 long",
        "Phi3",
        {"num_attention_heads": 8, "original_max_position_embeddings": 64, **_rope("longrope", **_LONGROPE)},
    ),
    Case(
        "phi3 short",
        "Phi3",
        {"num_attention_heads": 8, "original_max_position_embeddings": 128, **_rope("longrope", **_LONGROPE)},
        length=128,
    ),
    Case("mixtral", "Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    Case("mixtral with window", "Mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    Case("qwen3 moe", "Qwen3Moe", _MOE),
    Case(
        "qwen3 moe, some layers dense",
        "Qwen3Moe",
        {**_MOE, "num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2, "norm_topk_prob": True},
    ),
]
RATIOS = [(heads, kv_heads) for heads, kv_heads in ((8, 1), (8, 8), (6, 2), (9, 3), (7, 1))]


@pytest.fixture(scope="module", params=CASES, ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    torch.set_num_threads(1)
    return make_checkpoint(request.param, tmp_path_factory.mktemp("checkpoint"))


def _span(start: int, count: int) -> Span:
    return Span(PROMPT, start, count, BLOCKS, None)


def _paged(checkpoint: Checkpoint) -> PagedModel:
    return PagedModel(checkpoint.files, length=checkpoint.case.length)


def test_logits_equal_transformers(checkpoint: Checkpoint) -> None:
    expected = checkpoint.logits(PROMPT)
    torch.testing.assert_close(_paged(checkpoint).run(_span(0, 77)), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "cuts", [[16, 32, 77], [5, 6, 50, 76, 77], list(range(1, 78))], ids=["16", "odd", "one by one"]
)
def test_chunks_equal_the_whole(checkpoint: Checkpoint, cuts: list[int]) -> None:
    whole, chunked = _paged(checkpoint).run(_span(0, 77)), _paged(checkpoint)
    pieces = [chunked.run(_span(start, end - start)) for start, end in zip([0, *cuts], cuts, strict=False)]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=TOLERANCE, rtol=0)


@TORCH_KEEPS_ITS_BITS
def test_in_batch_invariant_mode_chunks_are_the_whole_to_the_bit(checkpoint: Checkpoint) -> None:
    whole, chunked = (
        PagedModel(checkpoint.files, length=checkpoint.case.length, batch_invariant=True) for _ in range(2)
    )
    expected = whole.run(_span(0, 77))
    cuts = [0, 5, 6, 23, 50, *range(70, 78)]
    pieces = [chunked.run(_span(start, end - start)) for start, end in pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), expected)


def test_greedy_tokens_equal_transformers(checkpoint: Checkpoint) -> None:
    """Through the engine, as a user has it: in chunks, then token by token, beside another request."""
    expected, nearest = checkpoint.greedy(PROMPT, ANSWER)
    assert nearest > 2 * TOLERANCE, "a near-tie proves nothing: take another seed"
    engine = _engine(checkpoint.files, checkpoint.case.length)
    prompts = (PROMPT, PROMPT[::-1][:40])
    jobs = [make_job(str(name), tuple(one), max_tokens=ANSWER, ignore_eos=True) for name, one in enumerate(prompts)]
    assert generate(engine, *jobs)[0] == expected


def test_bfloat16_is_as_near_as_that_of_transformers(checkpoint: Checkpoint) -> None:
    """The default dtype. Rounding differs, so the mean distance from float32 is compared, not the numbers."""
    exact = checkpoint.logits(PROMPT)
    theirs = (checkpoint.rounded(PROMPT) - exact).abs().mean()
    paged = PagedModel(checkpoint.files, length=checkpoint.case.length, dtype="bfloat16")
    ours = (
        (torch.cat([paged.run(_span(0, 60)), *(paged.run(_span(at, 1)) for at in range(60, 77))]) - exact).abs().mean()
    )
    assert 0 < ours < 1.25 * theirs


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_say_what_one_says(checkpoint: Checkpoint, size: int) -> None:
    def work(parallel: ThreadRank) -> torch.Tensor:
        paged = PagedModel(checkpoint.files, parallel, checkpoint.case.length)
        return torch.cat([paged.run(_span(0, 60)), *(paged.run(_span(start, 1)) for start in range(60, 77))])

    ranks = run_ranks(size, work)
    for rank in ranks:
        assert torch.equal(rank, ranks[0])
    torch.testing.assert_close(ranks[0], checkpoint.logits(PROMPT), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("heads", "kv_heads"), RATIOS)
def test_heads_of_every_ratio(tmp_path: Path, heads: int, kv_heads: int) -> None:
    numbers = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 8, "hidden_size": heads * 8}
    checkpoint = make_checkpoint(Case("llama", "Llama", numbers), tmp_path)
    paged = _paged(checkpoint)
    logits = torch.cat([paged.run(_span(0, 60)), *(paged.run(_span(start, 1)) for start in range(60, 77))])
    torch.testing.assert_close(logits, checkpoint.logits(PROMPT), atol=TOLERANCE, rtol=0)


def test_nothing_listed_goes_unproved() -> None:
    """The table that users read, the engine's loaders and the cases above name the same things."""
    assert ARCHITECTURES.keys() == LOADERS.keys()
    kinds = {case.kind.lower().replace("moe", "_moe").replace("gemma3", "gemma3_text") for case in CASES}
    assert kinds == ARCHITECTURES.keys()
    proved = {str(case.settings.get("rope_parameters", {}).get("rope_type", "default")) for case in CASES}
    assert proved == ROPE_VARIANTS.keys()


def _engine(files: ModelFiles, length: int) -> object:
    vocabulary = Vocabulary(files.config.vocab_size, frozenset(files.stop_ids))
    options = EngineOptions(
        dtype="float32",
        max_model_len=length,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        kv_cache_memory_bytes=2**23,
    )
    return build_engine(files, vocabulary, options)
