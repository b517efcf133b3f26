"""The runner of a model: runs it over its KV pages, draws the next tokens and scores known ones.

Owns the order forward, logits, sample, score. It knows no sequence, pool or schedule, and of sampling only that logits
go in.
"""

from itertools import accumulate
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.logprobs import TokenLogprob
from headrace.engine.logit_row import Logits
from headrace.engine.logprobs import score
from headrace.engine.model import Model
from headrace.engine.row_kernels import RowKernels
from headrace.engine.runner import Draw, Drawn, Pages, Span

# Rows whose logits stand in memory at once while known tokens are scored: 13 MB of a vocabulary of 49,152.
_SCORED_ROWS = 64


class Sampling(Protocol):
    """What draws tokens; see Sampler."""

    @property
    def rows(self) -> RowKernels:
        """What it computes with over the vocabulary."""
        ...

    def sample(self, logits: Logits, draws: list[Draw]) -> list[Drawn | HeadraceError]: ...


class ModelRunner:
    """See Runner."""

    def __init__(self, model: Model, pages: Pages, sampler: Sampling) -> None:
        """pages: that the model computes over."""
        self._model = model
        self._pages = pages
        self._sampler = sampler

    @property
    def pages(self) -> Pages:
        return self._pages

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        order = sorted(range(len(spans)), key=lambda index: spans[index].count > 1)
        drawn = self._run_sorted([spans[index] for index in order])
        by_span = dict(zip(order, drawn, strict=True))
        return [by_span[index] for index in range(len(spans))]

    def _run_sorted(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        self._model.forward(spans)
        ends = list(accumulate(span.count for span in spans))
        draws = {end - 1: span.draw for end, span in zip(ends, spans, strict=True) if span.draw is not None}
        drawn = self._draw(draws) if draws else {}
        return [
            self._scored(end - span.count, span, drawn.get(end - 1, Drawn(None)))
            for end, span in zip(ends, spans, strict=True)
        ]

    def _draw(self, draws: dict[int, Draw]) -> dict[int, Drawn | HeadraceError]:
        rows = list(draws)
        return dict(zip(rows, self._sampler.sample(self._model.logits(rows), list(draws.values())), strict=True))

    def _scored(self, first: int, span: Span, drawn: Drawn | HeadraceError) -> Drawn | HeadraceError:
        """`drawn` with the span's scores, if it asks for them. first: the span's first row."""
        if span.score is None or isinstance(drawn, HeadraceError):
            return drawn
        known = span.tokens[span.start + 1 : span.start + span.count + 1]
        scored: list[TokenLogprob] = []
        try:
            for start in range(0, len(known), _SCORED_ROWS):
                piece = known[start : start + _SCORED_ROWS]
                rows = range(first + start, first + start + len(piece))
                scored += score(self._model.logits(rows), piece, span.score, self._sampler.rows)
        except HeadraceError as error:
            return error
        return Drawn(drawn.token, drawn.logprob, tuple(scored))
