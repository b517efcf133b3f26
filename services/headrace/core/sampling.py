"""Sampling parameters: how the next token is chosen and when an answer ends."""

import math
from dataclasses import dataclass, replace

from headrace.core.errors import InvalidRequest
from headrace.core.logprobs import MAX_LOGPROBS

MAX_STOP_STRINGS = 16
_MAX_TOKEN = 2**31


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a caller asks of the sampler.

    temperature: 0 (greedy) to 2. top_k: 0 is off. top_p: 1 is off. min_p: keeps tokens of at least this share of
    the likeliest one's probability; 0 is off.
    presence_penalty, frequency_penalty: taken from the logit of each generated token, once and per occurrence.
    repetition_penalty: divides positive and multiplies negative logits of prompt and generated tokens (CTRL, 2019).
    logit_bias: (token id, what is added to its logit). allowed_token_ids: no others are drawn; None is off.
    bad_words: strings that must not be generated; bad_word_ids: the same as token ids, filled in by the router.
    min_tokens: generated tokens before which no stop id is drawn and no stop string ends the answer.
    seed: None until the router gives one, so that every request can be resumed exactly.
    max_tokens: None until the router fills in what the context leaves.
    stop: strings, cut from the text by the router; stop_token_ids: ends for the worker.
    logprobs, prompt_logprobs: alternatives to report with each generated and each prompt token; None is off, 0 the
    token alone.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 2.0, "temperature", "must lie between 0 and 2")
        _require(0.0 < self.top_p <= 1.0, "top_p", "must be above 0 and at most 1")
        _require(0 <= self.top_k < _MAX_TOKEN, "top_k", "must be 0 (off) or a positive 32-bit integer")
        _require(0.0 <= self.min_p <= 1.0, "min_p", "must lie between 0 and 1")
        self._check_penalties()
        self._check_tokens()
        self._check_length()
        self._check_reports()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def resolved(self, seed: int, max_tokens: int) -> "SamplingParams":
        """The same parameters with seed and length no longer open: what travels to workers."""
        return replace(
            self,
            seed=seed if self.seed is None else self.seed,
            max_tokens=max_tokens if self.max_tokens is None else self.max_tokens,
        )

    def _check_penalties(self) -> None:
        _require(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "must lie between -2 and 2")
        _require(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "must lie between -2 and 2")
        _require(
            0.0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            "must be a number above 0; 1 switches it off",
        )
        _require(all(-100.0 <= bias <= 100.0 for _, bias in self.logit_bias), "logit_bias", "must lie within ±100")

    def _check_tokens(self) -> None:
        _require_ids("logit_bias", tuple(token for token, _ in self.logit_bias))
        _require_ids("allowed_token_ids", self.allowed_token_ids or ())
        _require(self.allowed_token_ids != (), "allowed_token_ids", "must not be empty")
        _require(all(self.bad_words), "bad_words", "must not hold an empty string")
        _require(all(self.bad_word_ids), "bad_words", "must not hold a word without tokens")
        for word in self.bad_word_ids:
            _require_ids("bad_words", word)
        _require_ids("stop_token_ids", self.stop_token_ids)

    def _check_length(self) -> None:
        _require(self.max_tokens is None or 1 <= self.max_tokens < _MAX_TOKEN, "max_tokens", "must be 1 or more")
        _require(0 <= self.min_tokens < _MAX_TOKEN, "min_tokens", "must be 0 or more")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"is {self.min_tokens} and must not be above max_tokens, which is {self.max_tokens}",
        )
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "must be a signed 64-bit integer")
        _require(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"takes at most {MAX_STOP_STRINGS} strings")
        _require(all(self.stop), "stop", "must not hold an empty string")

    def _check_reports(self) -> None:
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"must lie between 0 and {MAX_LOGPROBS}")


def _require_ids(name: str, ids: tuple[int, ...]) -> None:
    _require(all(0 <= token < _MAX_TOKEN for token in ids), name, "must be token ids: integers of 0 or more")


def _require(holds: bool, param: str, what: str) -> None:
    if not holds:
        raise InvalidRequest(f"{param} {what}.", param=param)
