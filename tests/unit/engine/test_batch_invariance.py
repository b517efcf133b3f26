"""Batch-invariant mode: a token's logits are the same bits however its sequence is cut, mixed, cached or resumed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from fixtures.measured import TORCH_KEEPS_ITS_BITS
from fixtures.paged_model import BLOCKS, PagedModel
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files
from torch import Tensor

from headrace.core.blocks import BLOCK_TOKENS, blocks_for
from headrace.core.errors import StartupError
from headrace.engine import ops
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelConfig
from headrace_kernels.native import instruction_set

LONGEST = 200
PREFIX = 100
SEQUENCES = 5
SCHEDULES = 4
MOST_STEPS = 1000
# Windows, caps and the other activation; three query heads a KV head.
OTHER = replace(
    CONFIG,
    heads=6,
    windows=(40, 0),
    attention_softcap=3.0,
    logit_softcap=5.0,
    attention_scale=0.1,
    activation="gelu_tanh",
)

NATIVE = pytest.mark.skipif(instruction_set() is None, reason="The native kernels are not built here.")
SMALL = EngineOptions(
    dtype="float32", max_model_len=512, max_num_seqs=8, kv_cache_memory_bytes=2**20, batch_invariant=True
)


@dataclass(eq=False)
class Running:
    """A sequence: its first `computed` tokens stand in `blocks`, of which the first `shared` are the prefix's."""

    tokens: list[int]
    expected: Tensor
    cacheable: bool
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    shared: int = 0

    @property
    def missing(self) -> int:
        return len(self.tokens) - self.computed


class Schedule:
    """Computes sequences in random pieces, mixed at random, over few pages that were used before; compares every row.

    Some find the common prefix in pages. Younger ones lose their pages to older ones, and start again.
    """

    def __init__(self, model: PagedModel, draw: random.Random, sequences: list[Running]) -> None:
        self.model = model
        self.draw = draw
        self.live = [replace(one) for one in sequences]
        model.kv.pages.copy_(torch.randn(model.kv.pages.shape) * 3)
        self.free = draw.sample(range(BLOCKS), BLOCKS)
        self.prefix = [self.free.pop() for _ in range(PREFIX // BLOCK_TOKENS)]
        first = sequences[0].tokens
        for start in range(0, len(self.prefix) * BLOCK_TOKENS, 48):
            model.run(Span(first, start, min(48, len(self.prefix) * BLOCK_TOKENS - start), self.prefix, None))

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            if not self.live:
                return
            self._step()
        pytest.fail("the schedule did not come to an end")

    def _step(self) -> None:
        spans: dict[Running, Span] = {}
        budget = self.draw.choice([8, 33, 129, 256])
        for one in self.draw.sample(self.live, self.draw.randint(1, len(self.live))):
            if not one.blocks and one.cacheable and self.draw.random() < 0.5:
                one.shared, one.blocks = len(self.prefix), list(self.prefix)
                one.computed = one.shared * BLOCK_TOKENS
            most = min(budget, one.missing)
            count = self.draw.choice([1, self.draw.randint(1, most), most]) if most else 0
            if count and self._grow(one, count, spans):
                budget -= count
                spans[one] = Span(one.tokens, one.computed, count, one.blocks, None)
        self._compute(sorted(spans.items(), key=lambda pair: pair[1].count > 1))
        for one in [one for one in self.live if not one.missing or self.draw.random() < 0.01]:
            self._release(one)
            if not one.missing:
                self.live.remove(one)

    def _compute(self, spans: list[tuple[Running, Span]]) -> None:
        if not spans:
            return
        logits = self.model.run(*(span for _, span in spans)).split([span.count for _, span in spans])
        for (one, span), rows in zip(spans, logits, strict=True):
            assert torch.equal(rows, one.expected[span.start : span.start + span.count])
            one.computed += span.count

    def _grow(self, one: Running, count: int, spans: dict[Running, Span]) -> bool:
        while (lacking := blocks_for(one.computed + count) - len(one.blocks)) > len(self.free):
            younger = [other for other in self.live[self.live.index(one) + 1 :] if other.blocks]
            if not younger:
                return False
            spans.pop(younger[-1], None)
            self._release(younger[-1], again=True)
        one.blocks = one.blocks + [self.free.pop() for _ in range(lacking)]
        return True

    def _release(self, one: Running, *, again: bool = False) -> None:
        self.free += one.blocks[one.shared :]
        self.draw.shuffle(self.free)
        one.blocks, one.shared = [], 0
        if again or one.missing:
            one.computed = 0


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _sequences(model: PagedModel, draw: random.Random) -> list[Running]:
    """Each with what it gives alone, in one piece, on one thread."""
    torch.set_num_threads(1)
    prefix = [draw.randrange(3, 300) for _ in range(PREFIX)]
    lengths = [draw.randint(1, LONGEST - PREFIX) for _ in range(SEQUENCES)]
    tokens = [(prefix if index % 2 == 0 else []) + draw.choices(range(3, 300), k=n) for index, n in enumerate(lengths)]
    blocks = list(range(blocks_for(LONGEST)))
    return [
        Running(ids, model.run(Span(ids, 0, len(ids), blocks, None)).clone(), cacheable=index % 2 == 0)
        for index, ids in enumerate(tokens)
    ]


@pytest.mark.parametrize(
    ("dtype", "native"),
    [
        pytest.param("float32", False, marks=TORCH_KEEPS_ITS_BITS),
        pytest.param("bfloat16", False, marks=TORCH_KEEPS_ITS_BITS),
        pytest.param("float16", False, marks=TORCH_KEEPS_ITS_BITS),
        pytest.param("float32", True, marks=NATIVE),
        pytest.param("bfloat16", True, marks=NATIVE),
    ],
)
@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["plain", "other"])
def test_every_schedule_gives_the_same_bits(tmp_path: Path, config: ModelConfig, dtype: str, native: bool) -> None:
    model = PagedModel(tiny_files(tmp_path, config), dtype=dtype, batch_invariant=True, native=native)
    draw = random.Random(3)
    sequences = _sequences(model, draw)
    for schedule in range(SCHEDULES):
        torch.set_num_threads(max(1, schedule))
        Schedule(model, draw, sequences).run()


def test_a_machine_on_which_batches_matter_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check at the start fails once a kernel's numbers depend on what it computes at once."""
    files, rms_norm = tiny_files(tmp_path), ops.rms_norm

    def disturbed(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(hidden, weight, eps) * (1 + len(hidden) * 1e-6)

    on_torch = replace(SMALL, kernels="torch")
    engine = build_engine(files, VOCABULARY, on_torch)
    held = bytearray(engine.pages.layout.block_bytes)
    engine.pages.read([0], memoryview(held))
    assert not any(held), "the check leaves pages as it found them"
    monkeypatch.setattr(ops, "rms_norm", disturbed)
    with pytest.raises(StartupError, match=r"in a batch: \d+ of 300 logits differ, by \S+ at most, of tokens 0 to 0"):
        build_engine(files, VOCABULARY, on_torch)


@pytest.mark.parametrize("context", [2, 5, 12, 13])
@pytest.mark.parametrize("kernels", ["torch", pytest.param("native", marks=NATIVE)])
def test_the_check_stays_within_a_short_context(tmp_path: Path, kernels: str, context: int) -> None:
    """Rotary tables end with the context: beyond it there is an error, or memory of something else."""
    options = replace(SMALL, kernels=kernels, max_model_len=context)
    assert build_engine(tiny_files(tmp_path), VOCABULARY, options).info.max_model_len == context


def test_workers_of_both_modes_share_no_pages(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    digests = {
        build_engine(files, VOCABULARY, replace(SMALL, batch_invariant=on)).info.model_digest for on in (False, True)
    }
    assert len(digests) == 2


def test_more_rows_than_were_measured_are_refused() -> None:
    with pytest.raises(StartupError, match="512"):
        EngineOptions(batch_invariant=True, max_num_batched_tokens=1024)
