"""The Runner border: computes the KV of a batch of tokens and draws the next token where one is due.

Owns nothing itself. A runner knows pages, positions and sampling; it knows no job, schedule or pool.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.sampling import SamplingParams
from headrace.engine.page_memory import PageMemory


@dataclass(frozen=True, slots=True)
class Draw:
    """Asks for one token. Its noise is a function of (sampling.seed, choice, position, token) alone."""

    sampling: SamplingParams
    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share of a step: compute tokens[start : start + count] on top of what stands before.

    tokens: all that are known. blocks: the pages of the first start + count tokens, in order. draw: set if and
    only if the span reaches the last known token and a next one is wanted.
    """

    tokens: list[int]
    start: int
    count: int
    blocks: list[int]
    draw: Draw | None


class Runner(Protocol):
    """A model with its page memory. `run` is called on the engine's thread only."""

    @property
    def pages(self) -> PageMemory: ...

    def run(self, spans: list[Span]) -> list[int | HeadraceError | None]:
        """Compute all spans in one batch. Per span: the drawn token, None where none was asked for, or the error
        that fails this span alone. Spans never share a page that one of them writes."""
        ...
