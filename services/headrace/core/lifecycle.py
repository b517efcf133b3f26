"""The phases of a request: one enum, one table of legal moves, one `advance`."""

from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import InternalError


class Phase(Enum):
    """Where a request stands. The router owns it; workers never see it."""

    RECEIVED = "received"
    ROUTED = "routed"
    GRANTED = "granted"
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"
    DECODING = "decoding"
    DRAINING = "draining"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDINGS = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})
_GIVE_UP = frozenset({Phase.FAILED, Phase.CANCELLED})

# A local request goes from ROUTED straight to PREFILLING and never transfers. A retry after a lost worker
# goes back to ROUTED. One that changes workers with its pages has them all before it is GRANTED, and computes
# nothing. A resume behind which nothing is left is DONE unrouted. DRAINING is the way out while
# pages may still be in flight (I6).
MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.RECEIVED: _GIVE_UP | {Phase.ROUTED, Phase.DONE},
    Phase.ROUTED: _GIVE_UP | {Phase.GRANTED, Phase.PREFILLING, Phase.ROUTED},
    Phase.GRANTED: _GIVE_UP | {Phase.PREFILLING, Phase.TRANSFERRING, Phase.DRAINING, Phase.ROUTED},
    Phase.PREFILLING: _GIVE_UP | {Phase.TRANSFERRING, Phase.DECODING, Phase.DRAINING, Phase.DONE, Phase.ROUTED},
    Phase.TRANSFERRING: _GIVE_UP | {Phase.DECODING, Phase.DRAINING, Phase.DONE, Phase.ROUTED},
    Phase.DECODING: _GIVE_UP | {Phase.DONE, Phase.DRAINING, Phase.ROUTED},
    Phase.DRAINING: frozenset(_GIVE_UP | {Phase.DONE, Phase.ROUTED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One checked move: what the caller logs and the explanation keeps. `at` is in seconds, monotonic."""

    before: Phase
    after: Phase
    at: float


def advance(before: Phase, after: Phase, at: float) -> Transition:
    """The move from `before` to `after`. Raises InternalError if the table does not know it."""
    if after not in MOVES[before]:
        raise InternalError(f"A request cannot move from {before.value} to {after.value}.")
    return Transition(before, after, at)
