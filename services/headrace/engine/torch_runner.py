"""The torch runner: runs a model over its KV pages and draws the next tokens.

Owns the page tensors and the order forward, logits, sample. It knows no sequence, pool or schedule.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import HeadraceError, InternalError
from headrace.engine import ops
from headrace.engine.batch import Batch, make_batch
from headrace.engine.page_memory import PageMemory
from headrace.engine.runner import Draw, Drawn, Span
from headrace.engine.sample import sample


class Model(Protocol):
    """One architecture, loaded."""

    def forward(self, batch: Batch, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values; returns the last states [batch.rows, hidden]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [row, vocabulary] of [row, hidden], rows a multiple of ops.ROW_MULTIPLE."""
        ...


class TorchRunner:
    """See Runner."""

    def __init__(self, model: Model, pages: PageMemory, dtype: torch.dtype) -> None:
        self._model = model
        self._pages = pages
        self._kv = ops.PagedKv(torch.from_numpy(pages.bytes), pages.layout, dtype)

    @property
    def pages(self) -> PageMemory:
        return self._pages

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        order = sorted(range(len(spans)), key=lambda index: spans[index].count > 1)
        with torch.inference_mode():
            drawn = self._run_sorted([spans[index] for index in order])
        return [result for _, result in sorted(zip(order, drawn, strict=True), key=lambda pair: pair[0])]

    def _run_sorted(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        hidden = self._model.forward(make_batch(spans, self._kv.layout), self._kv)
        last = np.cumsum([span.count for span in spans]) - 1
        draws = {int(row): span.draw for row, span in zip(last, spans, strict=True) if span.draw is not None}
        drawn = self._draw(hidden, draws) if draws else {}
        return [drawn.get(int(row), Drawn(None)) for row in last]

    def _draw(self, hidden: Tensor, draws: dict[int, Draw]) -> dict[int, Drawn | HeadraceError]:
        rows = list(draws)
        padding = [rows[0]] * (ops.padded_rows(len(rows)) - len(rows))
        logits = self._model.logits(hidden[rows + padding])[: len(rows)].numpy()
        return {
            row: Drawn(token) if token is not None else InternalError("The model's logits are not finite.")
            for row, token in zip(rows, sample(logits, list(draws.values())), strict=True)
        }
