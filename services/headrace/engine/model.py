"""The Model border: computes the keys, values and states of a step's tokens, and the logits of some of them.

Owns nothing. Who computes, and on what, stands behind it.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.engine.logit_row import Logits
from headrace.engine.runner import Span


class Model(Protocol):
    """One architecture, loaded, over its pages."""

    def forward(self, spans: Sequence[Span]) -> None:
        """Writes the keys and values of the spans' tokens. Their states, a row a token in the spans' order, stay until
        the next call. Spans of one token come first."""
        ...

    def logits(self, rows: Sequence[int]) -> Logits:
        """float32 [len(rows), vocabulary] of rows of the last forward, on the host, in memory of their own: the sampler
        overwrites it."""
        ...
