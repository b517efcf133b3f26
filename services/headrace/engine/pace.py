"""The pace of a replica: what its steps with prompts took lately, and how much of prompts the next one may compute.

Owns the arithmetic, as pure functions of numbers, and the measuring. It knows no sequence; the clock is handed in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.core.blocks import BLOCK_TOKENS

_NEWEST = 0.3
"""Weight of the newest step. Each one before it weighs less than the next."""

_AIM = 0.9
"""Share of the limit that a step is planned to take: steps of one size do not all take the same time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Means over the steps that had prompts in them, the newest weighing most.

    prompt_tokens: of one step. seconds: of the same step in all. What is the same for every size of a step, and what
    its streams took, is in there, so a larger step has a higher pace than a smaller one: sizes that follow the pace
    come to rest where a step takes the time it is meant to.
    """

    prompt_tokens: float = 0.0
    seconds: float = 0.0

    def after(self, prompt_tokens: int, seconds: float) -> "Pace":
        """The pace when one more step has run. A step without prompts says nothing about them."""
        if prompt_tokens == 0:
            return self
        return Pace(
            self.prompt_tokens + _NEWEST * (prompt_tokens - self.prompt_tokens),
            self.seconds + _NEWEST * (seconds - self.seconds),
        )

    @property
    def prompt_tokens_s(self) -> float:
        """Tokens of prompts a second, beside all that ran with them; 0 while nothing is known."""
        return self.prompt_tokens / self.seconds if self.seconds > 0.0 else 0.0

    def prompt_tokens_within(self, limit_s: float) -> int:
        """How many tokens of prompts a step may compute to take less than `limit_s` seconds.

        At least a page's worth of BLOCK_TOKENS, or prompts would never end; no more than that while nothing is known.
        """
        if self.seconds <= 0.0:
            return BLOCK_TOKENS
        return max(BLOCK_TOKENS, int(_AIM * limit_s * self.prompt_tokens / self.seconds))


class Pacer:
    """Times the steps of one replica. limit_s: what a step with prompts should take at most; 0: it asks for no time
    and sets no limit."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._began = 0.0
        self._pace = Pace()

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens of prompts the next step may compute; None: as many as there is room for."""
        return self._pace.prompt_tokens_within(self._limit_s) if self._limit_s else None

    def begin(self) -> None:
        """A step begins."""
        if self._limit_s:
            self._began = self._clock()

    def ran(self, counts: Iterable[int]) -> None:
        """The step has computed so many tokens of each sequence. One is a stream's, or costs no more than one."""
        if self._limit_s:
            prompt_tokens = sum(count for count in counts if count > 1)
            self._pace = self._pace.after(prompt_tokens, self._clock() - self._began)
