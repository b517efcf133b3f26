"""Whether a model gives the same bits alone and in company, on this machine, with these libraries.

Owns the question asked at the start of a batch-invariant engine. What it rests on was measured, and holds for the
products of matrices of the processors and libraries that were at hand: elsewhere a start must fail, not an answer.
"""

from itertools import pairwise

import numpy as np

from headrace.core.blocks import blocks_for
from headrace.core.errors import StartupError
from headrace.engine.logit_row import Logits
from headrace.engine.model import Model
from headrace.engine.runner import Pages, Span

_CUTS = (0, 1, 5, 6, 13)  # where the probe is cut into pieces, and its length if the context has room for it
_TOKENS = 23  # distinct ids


def require_batch_invariance(model: Model, pages: Pages, *, blocks: int, most_rows: int, context: int) -> None:
    """Compute a few tokens alone, and again piece by piece beside others, at most `most_rows` in all.

    blocks: of the pool. context: tokens that a sequence may have. The pages are zero before and after. Raises
    StartupError if a bit differs.
    """
    size = pages.layout.block_tokens
    cuts = sorted({min(cut, context) for cut in _CUTS})
    length = cuts[-1]
    probe = _span(0, length, list(range(blocks_for(length, size))))
    others = min(most_rows - length, context, (blocks - len(probe.blocks)) * size)
    beside = [_span(0, others, list(range(len(probe.blocks), blocks)))] if others > 1 else []
    alone = _logits(model, [probe])
    pieces = [_span(start, stop - start, probe.blocks) for start, stop in pairwise(cuts)]
    for piece in pieces:
        rows = _logits(model, [piece, *beside])
        expected = alone[piece.start : piece.start + piece.count]
        if not np.array_equal(rows, expected):
            raise StartupError(
                f"On this machine the model's numbers depend on what else is in a batch: {_difference(rows, expected)} "
                f"of tokens {piece.start} to {piece.start + piece.count - 1}, beside {max(0, others)} others.",
                remedy="Lower --max-num-batched-tokens, choose another --dtype, or do without --batch-invariant.",
            )
    pages.clear(range(len(probe.blocks) + blocks_for(max(0, others), size)))


def _difference(rows: Logits, expected: Logits) -> str:
    differ = ~np.equal(rows, expected)
    most = np.abs(rows[differ].astype(np.float64) - expected[differ]).max()
    return f"{np.count_nonzero(differ)} of {differ.size} logits differ, by {most:.1e} at most,"


def _span(start: int, count: int, blocks: list[int]) -> Span:
    return Span([7 + index % _TOKENS for index in range(start + count)], start, count, blocks, None)


def _logits(model: Model, spans: list[Span]) -> Logits:
    """Of the first span's tokens."""
    model.forward(spans)
    return model.logits(range(spans[0].count))
