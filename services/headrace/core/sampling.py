"""Sampling parameters: how the next token is chosen and when an answer ends."""

from dataclasses import dataclass, replace

from headrace.core.errors import InvalidRequest

MAX_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a caller asks of the sampler.

    temperature: 0 (greedy) to 2. top_k: 0 is off. top_p: 1 is off.
    seed: None until the router gives one, so that every request can be resumed exactly.
    max_tokens: None until the router fills in what the context leaves.
    stop: strings, cut from the text by the router; stop_token_ids: ends for the worker.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 2.0, "temperature must lie between 0 and 2.")
        _require(0.0 < self.top_p <= 1.0, "top_p must be above 0 and at most 1.")
        _require(0 <= self.top_k < 2**31, "top_k must be 0 (off) or a positive 32-bit integer.")
        _require(self.max_tokens is None or 1 <= self.max_tokens < 2**31, "max_tokens must be 1 or more.")
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed must be a signed 64-bit integer.")
        _require(len(self.stop) <= MAX_STOP_STRINGS, f"stop takes at most {MAX_STOP_STRINGS} strings.")
        _require(all(self.stop), "stop must not hold an empty string.")
        _require(
            all(0 <= token < 2**31 for token in self.stop_token_ids),
            "stop_token_ids must be token ids: integers of 0 or more.",
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def resolved(self, seed: int, max_tokens: int) -> "SamplingParams":
        """The same parameters with nothing left open: what travels to workers."""
        return replace(
            self,
            seed=seed if self.seed is None else self.seed,
            max_tokens=max_tokens if self.max_tokens is None else self.max_tokens,
        )


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvalidRequest(sentence)
