"""The Runner border: computes the KV of a batch of tokens and draws the next token where one is due.

Owns nothing itself. A runner knows pages, positions and sampling; it knows no job, schedule or pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.logprobs import TokenLogprob
from headrace.core.pages import PagePort
from headrace.core.sampling import SamplingParams
from headrace.engine.history import TokenHistory


@dataclass(frozen=True, slots=True)
class Draw:
    """Asks for one token. Its noise is a function of (sampling.seed, choice, position, token) alone.

    history: the sequence's tokens so far, whose end is the end of the span.
    """

    sampling: SamplingParams
    choice: int
    history: TokenHistory

    @property
    def position(self) -> int:
        """Index of the token to draw among the generated ones."""
        return self.history.generated


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share of a step: compute tokens[start : start + count] on top of what stands before.

    tokens: all that are known. blocks: the pages of the first start + count tokens, in order. draw: set if and
    only if the span reaches the last known token and a next one is wanted. score: how many alternatives to report
    for each known token that follows one of the span's; None reports nothing.
    """

    tokens: list[int]
    start: int
    count: int
    blocks: list[int]
    draw: Draw | None
    score: int | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of a span. token: None where none was asked for. logprob: of `token`, where its sampling asks.

    scored: where the span asks, the logprobs of tokens[start + 1 : start + count + 1], as far as those are known.
    """

    token: int | None
    logprob: TokenLogprob | None = None
    scored: tuple[TokenLogprob, ...] = field(default=())


class Pages(PagePort, Protocol):
    """The memory of all pages, as the engine's thread sees it."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to), one after the other: a later pair may read what an earlier one wrote."""
        ...

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks."""
        ...


class Runner(Protocol):
    """A model with its page memory. `run` is called on the engine's thread only."""

    @property
    def pages(self) -> Pages: ...

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        """Compute all spans in one batch. Per span: what was drawn, or the error that fails this span alone.
        Spans never share a page that one of them writes."""
        ...
