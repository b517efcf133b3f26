"""Decode steps through static buffers against eager ones: states, logits and pages to the bit, padding poisoned.

Under Triton's interpreter, with a graph whose replay runs the step again. CUDA's graphs: test_model_on_gpu.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from fixtures.paged_model import PagedModel
from fixtures.rerun_graph import HostReads, RerunGraph
from fixtures.tiny_model import CONFIG, tiny_files
from torch import Tensor

from headrace.core.errors import InternalError
from headrace.engine.batch import make_batch
from headrace.engine.captured_decode import CapturedDecode, capture_sizes
from headrace.engine.models.experts import Mixture
from headrace.engine.runner import Span
from headrace.engine.static_step import StepBuffers
from headrace.engine.torch_decoder import TorchDecoder
from headrace.modelfiles.files import ModelConfig

GEMMA = replace(
    CONFIG,
    architecture="gemma3_text",
    activation="gelu_tanh",
    windows=(9, 0),
    attention_softcap=3.0,
    logit_softcap=5.0,
    local_rope_theta=1000.0,
)
MOST = 17
SMALL = replace(CONFIG, layers=1, heads=2, kv_heads=1)
# Two splits of attention, where the contexts of an eager batch need one.
CONTEXT = 272
PAGES = 3
BLOCKS = MOST * PAGES + 1
POISON = BLOCKS - 1  # a block of no sequence, all NaN
# Where a sequence stands before the first step: at, before and behind the edges of pages.
STARTS = (15, 0, 31, 14, 16, 1, 30, 32, 40)

pytestmark = pytest.mark.usefixtures("on_cpu_tensors", "exact_products")


@dataclass
class Twins:
    """One model over two copies of the same pages: eager steps write one, captured steps the other."""

    eager: PagedModel
    kept: PagedModel
    captured: CapturedDecode
    graphs: list[RerunGraph] = field(default_factory=list)

    def step(self, spans: list[Span]) -> None:
        """Both run it, and agree to the bit."""
        self.captured.buffers.table.fill_(POISON)
        outcomes = (self._run(self.eager.decoder, self.eager, spans), self._run(self.captured, self.kept, spans))
        for eager, captured in zip(*outcomes, strict=True):
            assert torch.equal(captured, eager)
            assert eager.isfinite().all()
        assert torch.equal(_bits(self.kept), _bits(self.eager))

    def _run(self, model: TorchDecoder | CapturedDecode, paged: PagedModel, spans: list[Span]) -> tuple[Tensor, Tensor]:
        batch = make_batch(spans, paged.layout)
        with torch.inference_mode():
            hidden = model.forward(batch, paged.kv)
            assert len(hidden) == batch.rows
            assert hidden.isfinite().all(), "padding reads nothing: it would find NaN"
            return hidden[: batch.tokens], model.logits(hidden)[: batch.tokens]


def _bits(model: PagedModel) -> Tensor:
    return model.kv.pages.view(torch.int32)


def _twins(directory: Path, config: ModelConfig, most: int = MOST) -> Twins:
    """Both hold the same noise in the contexts of STARTS, and NaN everywhere else."""
    files = tiny_files(directory, config)
    eager, kept = (PagedModel(files, length=CONTEXT, blocks=BLOCKS) for _ in range(2))
    graphs: list[RerunGraph] = []

    def make_graph() -> RerunGraph:
        graphs.append(RerunGraph())
        return graphs[-1]

    eager.kv.pages.fill_(torch.nan)
    noise = torch.Generator().manual_seed(3)
    for sequence in range(MOST):
        for position in range(_start(sequence)):
            place = eager.kv.pages[:, _blocks(sequence)[position // 16], :, :, position % 16]
            place.copy_(torch.randn(place.shape, generator=noise))
    kept.kv.pages.copy_(eager.kv.pages)
    captured = CapturedDecode(kept.decoder, kept.kv, sequences=most, context=CONTEXT, make_graph=make_graph)
    assert torch.equal(_bits(kept), _bits(eager)), "a capture writes nothing"
    return Twins(eager, kept, captured, graphs)


def _start(sequence: int) -> int:
    return STARTS[sequence % len(STARTS)]


def _blocks(sequence: int) -> list[int]:
    """Of a pool in which neighbours of a sequence are not its own."""
    return [sequence + MOST * page for page in range(PAGES)]


def _decoding(steps: list[int]) -> list[Span]:
    """Sequence after sequence in its step of that number, with the pages that its context reaches and no more."""
    spans: list[Span] = []
    for sequence, step in enumerate(steps):
        start = _start(sequence) + step
        tokens = [3 + (7 * position + 11 * sequence) % 290 for position in range(start + 1)]
        spans.append(Span(tokens, start, 1, _blocks(sequence)[: start // 16 + 1], None))
    return spans


def test_batches_of_every_size_step_after_step(tmp_path: Path) -> None:
    """They grow and shrink: what a larger one left in the buffers is nothing to a smaller one. Sequences pass the ends
    of pages on the way."""
    twins, done = _twins(tmp_path, SMALL), [0] * MOST
    counts = (*range(1, 10), 17, 8, 2, 1)
    for count in counts:
        twins.step(_decoding(done[:count]))
        done[:count] = [step + 1 for step in done[:count]]
    crossed = [(_start(one) - 1) // 16 < (_start(one) + done[one] - 1) // 16 for one in range(MOST)]
    assert sum(crossed) > MOST // 2
    assert [graph.replayed for graph in twins.graphs] == [1, 1, 5, 2, 2, 2]


def test_windows_soft_caps_and_norms_of_heads(tmp_path: Path) -> None:
    twins = _twins(tmp_path, GEMMA, 4)
    for step in range(2):
        twins.step(_decoding([step] * 3))


def test_other_batches_run_eagerly(tmp_path: Path) -> None:
    twins = _twins(tmp_path, SMALL, 2)
    chunk = Span(list(range(3, 12)), 0, 9, _blocks(1)[:1], None)
    twins.step([*_decoding([0]), chunk])
    twins.step(_decoding([0, 0, 0]))
    assert len(twins.graphs) == 2
    assert not any(graph.replayed for graph in twins.graphs)


@pytest.mark.parametrize(
    ("sequences", "sizes"),
    [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (17, [1, 2, 4, 8, 16, 17]), (64, [1, 2, 4, 8, 16, 32, 64])],
)
def test_sizes(sequences: int, sizes: list[int]) -> None:
    assert capture_sizes(sequences) == sizes


def test_a_static_step_has_no_contexts_and_a_graph_no_eyes() -> None:
    """What would go round the buffers fails, instead of being recorded as it was at the capture."""
    step = StepBuffers(4, 2, 16, torch.device("cpu")).step(2)
    with pytest.raises(InternalError, match="captured step"):
        _ = step.contexts
    with HostReads(), pytest.raises(AssertionError, match="on the host"):
        step.ids.sum().item()


def test_a_mixture_of_experts_is_known(tmp_path: Path) -> None:
    dense = PagedModel(tiny_files(tmp_path)).decoder
    assert not dense.has_experts
    mixture = Mixture(torch.zeros(2, 64), (), 1, False, "silu")
    layers = (dense.parts.layers[0], replace(dense.parts.layers[1], feed_forward=mixture))
    assert replace(dense, parts=replace(dense.parts, layers=layers)).has_experts
