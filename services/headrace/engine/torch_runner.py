"""The torch runner: runs a model over its KV pages, draws the next tokens and scores known ones.

Owns the page tensors and the order forward, logits, sample, score. It knows no sequence, pool or schedule, and of
sampling only that logits go in.
"""

from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from headrace.core.errors import HeadraceError
from headrace.core.logprobs import TokenLogprob
from headrace.engine import ops
from headrace.engine.batch import Batch, make_batch
from headrace.engine.logit_row import Logits
from headrace.engine.logprobs import score
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.row_kernels import RowKernels
from headrace.engine.rows import ROW_MULTIPLE
from headrace.engine.runner import Draw, Drawn, Pages, Span

# Rows whose logits stand in memory at once while known tokens are scored: 13 MB of a vocabulary of 49,152.
_SCORED_ROWS = 64


class Model(Protocol):
    """One architecture, loaded."""

    def forward(self, batch: Batch, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values; returns the last states [batch.rows, hidden], good until the next one."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [row, vocabulary] of [row, hidden], in memory of its own: the sampler overwrites it.
        Rows are a multiple of ROW_MULTIPLE, except for the native kernels."""
        ...


class Sampling(Protocol):
    """What draws tokens; see Sampler."""

    @property
    def rows(self) -> RowKernels:
        """What it computes with over the vocabulary."""
        ...

    def sample(self, logits: Logits, draws: list[Draw]) -> list[Drawn | HeadraceError]: ...


class TorchRunner:
    """See Runner."""

    def __init__(self, model: Model, pages: Pages, kv: ops.PagedKv, sampler: Sampling) -> None:
        """kv: over the memory of `pages`, or over this rank's share of it."""
        self._model = model
        self._pages = pages
        self._kv = kv
        self._sampler = sampler
        # The native kernels give a row the same bits in any company, and one row costs them less than eight.
        self._row_multiple = 1 if isinstance(model, NativeDecoder) else ROW_MULTIPLE

    @property
    def pages(self) -> Pages:
        return self._pages

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        order = sorted(range(len(spans)), key=lambda index: spans[index].count > 1)
        with torch.inference_mode():
            drawn = self._run_sorted([spans[index] for index in order])
        by_span = dict(zip(order, drawn, strict=True))
        return [by_span[index] for index in range(len(spans))]

    def _run_sorted(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        kv = self._kv
        hidden = self._model.forward(make_batch(spans, kv.layout, kv.page_multiple, kv.device), kv)
        ends = list(accumulate(span.count for span in spans))
        draws = {end - 1: span.draw for end, span in zip(ends, spans, strict=True) if span.draw is not None}
        drawn = self._draw(hidden, draws) if draws else {}
        return [
            self._scored(hidden, end - span.count, span, drawn.get(end - 1, Drawn(None)))
            for end, span in zip(ends, spans, strict=True)
        ]

    def _draw(self, hidden: Tensor, draws: dict[int, Draw]) -> dict[int, Drawn | HeadraceError]:
        rows = list(draws)
        return dict(zip(rows, self._sampler.sample(self._logits(hidden, rows), list(draws.values())), strict=True))

    def _scored(self, hidden: Tensor, first: int, span: Span, drawn: Drawn | HeadraceError) -> Drawn | HeadraceError:
        """`drawn` with the span's scores, if it asks for them. first: the span's first row of hidden."""
        if span.score is None or isinstance(drawn, HeadraceError):
            return drawn
        known = span.tokens[span.start + 1 : span.start + span.count + 1]
        scored: list[TokenLogprob] = []
        try:
            for start in range(0, len(known), _SCORED_ROWS):
                piece = known[start : start + _SCORED_ROWS]
                rows = list(range(first + start, first + start + len(piece)))
                scored += score(self._logits(hidden, rows), piece, span.score, self._sampler.rows)
        except HeadraceError as error:
            return error
        return Drawn(drawn.token, drawn.logprob, tuple(scored))

    def _logits(self, hidden: Tensor, rows: list[int]) -> Logits:
        """float32 [len(rows), vocabulary] on the host, of a memory of its own."""
        count = -(-len(rows) // self._row_multiple) * self._row_multiple
        if rows == list(range(len(rows))) and count <= len(hidden):
            picked = hidden[:count]  # of a step of streams: what follows them is padding
        else:
            picked = hidden[torch.tensor(rows + [rows[0]] * (count - len(rows)))]
        logits: Logits = self._model.logits(picked)[: len(rows)].cpu().numpy()
        return logits
