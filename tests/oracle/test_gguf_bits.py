"""SmolLM2's own Q4_1 and Q8_0 bits on the native kernels against float32 torch on the same weights inflated.

The weights are the same numbers. What differs is that products take activations as 127ths of the largest of each 32
values. What that alone does to the logits is measured with torch, whose products then take the activations so rounded:
4 % of the logits' spread here. The kernels round other last bits, so theirs is another noise, but of that size.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from fixtures.paged_model import BLOCKS as POOL
from fixtures.paged_model import PagedModel
from fixtures.references import load_references
from torch import Tensor

from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelFiles
from headrace_kernels import native, reference

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")


def _span() -> Span:
    prompt = load_references()[0].prompt
    return Span(prompt, 0, len(prompt), list(range(POOL)), None)


@contextmanager
def _rounded_activations() -> Iterator[None]:
    linear = torch.nn.functional.linear
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.nn.functional, "linear", lambda rows, *rest: linear(reference.rounded_activations(rows), *rest)
        )
        yield


def _spread(logits: Tensor, exact: Tensor) -> float:
    return float((logits - exact).square().mean().sqrt() / exact.std())


def test_logits_equal_those_of_the_inflated_weights(files: ModelFiles) -> None:
    torch.set_num_threads(2)
    exact = PagedModel(files).run(_span())
    with _rounded_activations():
        rounded = _spread(PagedModel(files).run(_span()), exact)
    kept = PagedModel(files, native=True, quantization="gguf").run(_span())
    assert 0 < _spread(kept, exact) < 1.3 * rounded < 0.07
    sure = exact.topk(2).values.diff().abs().squeeze(1) > 6 * rounded * exact.std()
    assert sure.sum() > 3
    assert torch.equal(kept.argmax(1)[sure], exact.argmax(1)[sure])


def test_the_matrices_take_the_bytes_that_they_have_in_the_file(files: ModelFiles) -> None:
    """The head is the embedding: there is one of it."""
    compiled = PagedModel(files, native=True, quantization="gguf").compiled
    packed = sum(matrix.bytes for program in (compiled.layers, compiled.head) for matrix in program.matrices())
    assert packed == sum(entry.nbytes for entry in files.tensors if len(entry.shape) > 1)
