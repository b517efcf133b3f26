"""The native kernels against transformers: every architecture that they can run, and what they leave to torch."""

import itertools

import pytest
import torch
from fixtures.paged_model import PagedModel
from fixtures.tiny_checkpoint import Case, Checkpoint, make_checkpoint
from oracle.test_architectures import BLOCKS, CASES, PROMPT, TOLERANCE

from headrace.engine.native.compile import obstacle
from headrace.engine.runner import Span
from headrace_kernels import native

EXPERTS = {"Mixtral", "Qwen3Moe"}
pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")


@pytest.fixture(scope="module", params=[case for case in CASES if case.kind not in EXPERTS], ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    torch.set_num_threads(1)
    checkpoint = make_checkpoint(request.param, tmp_path_factory.mktemp("checkpoint"))
    if not native.takes_heads_of(checkpoint.files.config.head_dim):
        pytest.skip(f"Heads of {checkpoint.files.config.head_dim} values are torch's on this processor.")
    return checkpoint


def _span(start: int, count: int) -> Span:
    return Span(PROMPT, start, count, BLOCKS, None)


def _native(checkpoint: Checkpoint, dtype: str = "float32") -> PagedModel:
    return PagedModel(checkpoint.files, length=checkpoint.case.length, dtype=dtype, native=True)


def test_logits_equal_transformers(checkpoint: Checkpoint) -> None:
    expected = checkpoint.logits(PROMPT)
    torch.testing.assert_close(_native(checkpoint).run(_span(0, 77)), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_the_chunk(checkpoint: Checkpoint, dtype: str) -> None:
    whole, chunked = _native(checkpoint, dtype).run(_span(0, 77)), _native(checkpoint, dtype)
    cuts = [0, 5, 6, 23, 50, *range(70, 78)]
    pieces = [chunked.run(_span(start, end - start)) for start, end in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), whole)


def test_bfloat16_is_nearer_than_that_of_transformers(checkpoint: Checkpoint) -> None:
    """Activations stay float32 between the products."""
    exact = checkpoint.logits(PROMPT)
    theirs = (checkpoint.rounded(PROMPT) - exact).abs().mean()
    ours = (_native(checkpoint, "bfloat16").run(_span(0, 77)) - exact).abs().mean()
    assert 0 < ours < theirs


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in EXPERTS][:1], ids=str)
def test_what_is_left_to_torch_is_said(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoint = make_checkpoint(case, tmp_path_factory.mktemp("checkpoint"))
    assert obstacle(checkpoint.files.config, "float32") == "they know no experts"
    dense = make_checkpoint(CASES[0], tmp_path_factory.mktemp("dense"))
    assert obstacle(dense.files.config, "float16") == "they do not compute in float16"
