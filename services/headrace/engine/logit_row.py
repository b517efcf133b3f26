"""Arithmetic over one row of logits: its best ids and its mass.

Owns nothing. Each function sees one row alone, so what it returns does not depend on the batch; and a row stays in a
core's cache from one pass to the next, which a whole batch of large vocabularies does not.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_LANES = 16
_SIGN = np.uint32(1 << 31)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
# Colder than this float32 has no number to divide by; logits that differ are worlds apart long before.
COLDEST = 1e-30


def heated(row: Logits, best: float, temperature: float) -> torch.Tensor:
    """(logit - best) / temperature in float32, in memory of its own."""
    scores = torch.from_numpy(row) - best
    return scores if temperature == 1.0 else scores.div_(max(temperature, COLDEST))


def mass(row: Logits, best: float, temperature: float) -> float:
    """Sum of exp((logit - best) / temperature): float32 terms, added in float64."""
    return float(heated(row, best, temperature).exp_().numpy().sum(dtype=np.float64))


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
