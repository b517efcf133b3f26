"""Arithmetic over one row of logits: its best ids and its mass.

Owns nothing. Each function sees one row alone, so what it returns does not depend on the batch; and a row stays in a
core's cache from one pass to the next, which a whole batch of large vocabularies does not.
"""

import math

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_LANES = 16
_SIGN = np.uint32(1 << 31)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
# Colder than this float32 has no number to divide by; logits that differ are worlds apart long before.
COLDEST = 1e-30
# Weights are whole multiples of 1 / UNIT.
UNIT = 2**34
_NO_WEIGHT = np.float32(-80.0)  # far below half a unit
_MAGIC = np.float32(1.5 * 2**23)  # added and taken away again, it rounds to whole numbers
_TERMS = np.array([1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1], np.float32)


def heated(row: Logits, best: float, temperature: float) -> Logits:
    """(logit - best) / temperature in float32, in memory of its own; -inf where that is beyond it."""
    with np.errstate(over="ignore"):
        scores: Logits = (row - np.float32(best)) / np.float32(max(temperature, COLDEST))
    return scores


def weights(scores: Logits) -> npt.NDArray[np.float64]:
    """e^score in whole units of 1 / UNIT. scores: 0 or less.

    Only operations that round alike everywhere (Cody and Waite's reduction, then a polynomial), so that every
    implementation gives the same; and sums of up to 2^19 whole numbers are exact, in whatever order.
    """
    x = np.maximum(scores, _NO_WEIGHT)
    turns = (x * np.float32(1.44269504) + _MAGIC) - _MAGIC
    rest = x - turns * np.float32(0.693359375)
    rest += turns * np.float32(2.12194440e-4)
    value = np.full_like(rest, 1.9875691500e-4)
    for term in _TERMS:
        value = value * rest + term
    value = (value * rest * rest + rest) + np.float32(1.0)
    power = turns.astype(np.int32) << np.int32(23)
    whole: npt.NDArray[np.float64] = np.rint((value.view(np.int32) + power).view(np.float32) * np.float64(UNIT))
    return whole


def mass(row: Logits, best: float, temperature: float) -> float:
    """Sum of exp((logit - best) / temperature), to a multiple of 1 / UNIT."""
    return float(weights(heated(row, best, temperature)).sum()) / UNIT


def best_ids(row: Logits, count: int) -> Ids:
    """The `count` best ids, best first; equal ones in order of id. -inf is nobody's best."""
    floor = max(reached_by(row, min(count, len(row))), float(np.finfo(np.float32).min))
    return ranked(row, np.flatnonzero(row >= floor))[:count]


def reached_by(row: Logits, count: int) -> float:
    """A value that `count` or more entries of the row reach, close to the count-th best."""
    if count == 0:
        return math.inf
    columns = len(row) // _LANES
    # The best of each column are entries of the row: as many of them reach a value, as many entries do at least.
    looked_at = row[: columns * _LANES].reshape(_LANES, columns).max(axis=0) if count <= columns else row
    place = len(looked_at) - count
    return float(np.partition(looked_at, place)[place])


def ranked(row: Logits, ids: Ids) -> Ids:
    """`ids` (any order) by their logits, best first; equal ones in order of id.

    Sorts integers: the logit's bits, made to descend, above the id's.
    """
    bits = (row[ids] + np.float32(0.0)).view(np.uint32)  # + 0: -0.0 and 0.0 are equal
    descending = np.where(bits & _SIGN, bits, ~bits & ~_SIGN)
    keys = (descending.astype(np.uint64) << _HALF) | ids.view(np.uint64)
    keys.sort()
    return (keys & _LOW).view(np.int64)
