"""The constants by which routes are weighed, and who may prefill where. Values only."""

from dataclasses import dataclass
from enum import Enum


class Disaggregation(Enum):
    """always: prefill on a prefill worker whenever the fleet has one, even for one uncached token.
    auto: prefill where it decodes when few tokens are uncached. never: every request stays on one worker."""

    ALWAYS = "always"
    AUTO = "auto"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Policy:
    """Expected costs in milliseconds; what matters is their ratio.

    prefill_ms_per_token: computing one uncached prompt token (a 135M model on two cores: 1,000 tokens a second).
    transfer_ms_per_token: moving one missing token's KV (23 KB at 0.6 GB/s).
    running_ms: what one running sequence adds to another's next step. waiting_ms: one job waiting in front.
    avoid_ms: added where this request failed before and blame is uncertain: chosen only if nothing else is left.
    cold_ms: added to a pair of workers that is only just being introduced: taken last, before those to avoid.
    pull: whether a worker may fetch a prefix from another's cache. pull_ms: what that takes beside moving the pages.
    auto_local_tokens: with `auto`, at most so many uncached tokens are prefilled where they decode.
    retry_after_s: what refused callers are told.
    """

    disaggregation: Disaggregation = Disaggregation.ALWAYS
    prefill_ms_per_token: float = 1.0
    transfer_ms_per_token: float = 0.04
    running_ms: float = 2.0
    waiting_ms: float = 50.0
    avoid_ms: float = 1e6
    cold_ms: float = 1e5
    pull: bool = True
    pull_ms: float = 5.0
    auto_local_tokens: int = 64
    retry_after_s: float = 1.0
