"""Whether anything grows: the samples of all laps, and what rises from one third of them to the next.

Pure. A process that lives on must not need more after thousands of requests than after the first few hundred; a process
that is started again must need what the lives before it needed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from headrace.chaos.soak.sample import COUNTS, HELD, MEMORY, THREADS, Sample

# Growth of memory from the first third of the laps to the last that is no leak: the larger of these.
MEMORY_BYTES, MEMORY_SHARE = 3 * 2**20, 0.03
# Of so many laps a trend of one more now and then shows; of fewer, down to `_LEAST`, one that is more than a wavering.
_MANY, _LEAST = 6, 3
_WAVERS = 1
# What fills up with the first thousand requests, caches and pools of threads, is judged only after so many.
_SLOW, _SLOWLY = (MEMORY, THREADS), 1000
# Of all pairs of laps so many may fall where the whole rises.
_FALLING = 0.1
_FLOORS = 3
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Series:
    """One measure of one process by name, a value a lap. lives: of how many processes of that name."""

    member: str
    measure: str
    values: tuple[int, ...]
    lives: int = 1


def warm_up(laps: int) -> int:
    """How many laps at the beginning are not judged: routers remember their last thousand requests."""
    return max(1, laps // 3)


def series(laps: Sequence[Sequence[Sample]]) -> tuple[Series, ...]:
    """From the samples at the end of each lap; a lap without the measure is left out."""
    values: dict[tuple[str, str], list[int]] = {}
    pids: dict[str, set[int]] = {}
    for each in (one for lap in laps for one in lap):
        pids.setdefault(each.member, set()).add(each.pid)
        for measure, value in each.values.items():
            values.setdefault((each.member, measure), []).append(value)
    return tuple(
        Series(member, measure, tuple(found), len(pids[member])) for (member, measure), found in values.items()
    )


def ends(each: Series) -> tuple[float, float]:
    """What it is in the first third of the laps that are judged, and in the last; medians."""
    judged = each.values[warm_up(len(each.values)) :] or each.values
    size = max(1, len(judged) // 3)
    return median(judged[:size]), median(judged[-size:])


def risen(everything: Iterable[Series], requests: int) -> tuple[str, ...]:
    """What is not flat, one sentence each. requests: of all laps."""
    return tuple(sentence for each in everything if (sentence := _rise(each, requests)))


def unjudged(laps: int, requests: int) -> str:
    """What a soak of so many laps and requests does not judge, in one sentence; "" if there is nothing of the kind."""
    measures = [measure for measure in (MEMORY, *COUNTS) if not _is_judged(measure, laps, requests)]
    if not measures:
        return ""
    if len(measures) > len(_SLOW):
        return f"So few laps ({laps}) do not show whether anything grows: only what is held at rest is judged."
    return (
        f"Whether {' and '.join(measures)} grow is not judged: that takes {_SLOWLY} requests that warm up, and {_MANY}"
        f" laps behind them."
    )


def _rise(each: Series, requests: int) -> str:
    if each.measure in HELD:
        return f"{each.member} holds {each.measure} at rest: {_listed(each)}" if any(each.values) else ""
    if not _is_judged(each.measure, len(each.values), requests):
        return ""
    judged = each.values[warm_up(len(each.values)) :]
    if each.measure == MEMORY:
        rises = _memory_rises(judged, lasting=each.lives == 1)
    else:
        rises = _rises(judged, 0 if len(judged) >= _MANY else _WAVERS)
    return f"{each.member} has more {each.measure} lap by lap: {_listed(each)}" if rises else ""


def _is_judged(measure: str, laps: int, requests: int) -> bool:
    early = warm_up(laps)
    if laps - early < _LEAST:
        return False
    return measure not in _SLOW or (laps - early >= _MANY and requests * early / laps >= _SLOWLY)


def _rises(values: Sequence[int], allowed: float) -> bool:
    """Whether the last third lies above the first, and hardly a lap below an earlier one, and what it never comes back
    to rose more than once. So a step that came once is none, nor is what wavers."""
    first, _, last = _thirds(values)
    falling = [later < earlier for earlier, later in combinations(values, 2)]
    floors = {min(values[place:]) for place in range(len(values))}
    return min(last) > max(first) + allowed and len(floors) >= _FLOORS and sum(falling) <= _FALLING * len(falling)


def _memory_rises(values: Sequence[int], *, lasting: bool) -> bool:
    """Processes that were started again are of any age when they are looked at, so theirs lie further apart."""
    first, _, last = _thirds(values)
    allowed = max(MEMORY_BYTES, MEMORY_SHARE * median(first))
    return median(last) > median(first) + allowed if lasting else _rises(values, allowed)


def _thirds(values: Sequence[int]) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    size = len(values) // 3
    return values[:size], values[size:-size], values[-size:]


def _listed(each: Series) -> str:
    if each.measure == MEMORY:
        return ", ".join(f"{value / _MIB:.1f}" for value in each.values) + " MiB"
    return ", ".join(str(value) for value in each.values)
