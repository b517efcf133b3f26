"""A decode step of a small model on a GPU, eager and captured: what the launches of its kernels cost.

A step is timed as the engine feels it, from the spans to logits on the host, without sampling.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.blocks import blocks_for
from headrace.core.layout import KvLayout
from headrace.engine.batch import make_batch
from headrace.engine.captured_decode import CapturedDecode, Graph
from headrace.engine.ops import PagedKv
from headrace.engine.runner import Span
from headrace.engine.torch_build import load_model
from headrace.engine.torch_model import TensorModel
from headrace.modelfiles.files import ModelFiles

HEAD = "| model | streams | context | eager ms | captured ms | eager / captured |\n|---|---|---|---|---|---|"
_DTYPE = torch.bfloat16
_BLOCK = 16
_ROUNDS, _WARM_UP = 20, 3


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """run: a step of `streams` sequences, by their model as it is and with its steps captured."""

    model: str
    streams: int
    context: int
    eager: Callable[[], Tensor]
    captured: Callable[[], Tensor]

    def row(self, eager_s: float, captured_s: float) -> str:
        times = f"{eager_s * 1000:.2f} | {captured_s * 1000:.2f} | {eager_s / captured_s:.2f}"
        return f"| {self.model} | {self.streams} | {self.context} | {times} |"


def decode_steps(
    files: ModelFiles, device: torch.device, make_graph: Callable[[], Graph], streams: tuple[int, ...], context: int
) -> Iterator[DecodeStep]:
    """Of sequences with `context` tokens each, the new one among them, over pages of zeros."""
    config, pages = files.config, blocks_for(context, _BLOCK)
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, _BLOCK, "bfloat16")
    shape = (layout.layers, max(streams) * pages, layout.page_bytes)
    kv = PagedKv(torch.zeros(shape, dtype=torch.uint8, device=device), layout, _DTYPE)
    decoder = load_model(files, _DTYPE, context, device=device)
    captured = CapturedDecode(decoder, kv, sequences=max(streams), context=context, make_graph=make_graph)
    for count in streams:
        spans = [
            Span([7] * context, context - 1, 1, list(range(one * pages, (one + 1) * pages)), None)
            for one in range(count)
        ]
        yield DecodeStep(files.name, count, context, _step(decoder, kv, spans), _step(captured, kv, spans))


def _step(model: TensorModel, kv: PagedKv, spans: list[Span]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.inference_mode():
            batch = make_batch(spans, kv.layout, device=kv.device)
            return model.logits(model.forward(batch, kv))[: batch.tokens].cpu()

    return run


def median_seconds(run: Callable[[], object]) -> float:
    """By the host's clock: `run` ends with a copy to the host, so the device is done."""
    seconds: list[float] = []
    for _ in range(_WARM_UP + _ROUNDS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[_WARM_UP:])
