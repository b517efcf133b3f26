"""Top-k, min-p and top-p: which tokens of a row may be drawn at all.

Owns the filters and their order: min_p and top_k, then top_p over what those left. Each keeps the best tokens of a
row, so that the best one always survives. Where there is no filter, it is left out who cannot win whatever the noise.
"""

import math

import numpy as np

from headrace.core.sampling import SamplingParams
from headrace.engine.logit_row import COLDEST, UNIT, Ids, Logits, heated, ranked, reached_by, weights
from headrace.engine.noise import NOISE_RANGE, Floats, Stream, leaders

_LOWEST = float(np.finfo(np.float32).min)
# By how much a threshold over float32 logits is lowered, so that it never loses what float64 arithmetic keeps.
_SLACK = 1e-3
# Vocabularies from which on noise is bounded before it is computed.
_MANY = 4096


def survivors(row: Logits, best: float, sampling: SamplingParams, stream: Stream) -> tuple[Ids, Floats]:
    """Ids that may be drawn, ascending, and their (logit - best) / temperature. best: the row's largest logit."""
    if len(row) > _MANY and not _filtered(sampling):
        ids = leaders(stream, heated(row, best, sampling.temperature))
        return ids, scaled(row, best, sampling.temperature, ids)
    return filtered(row, best, sampling)


def filtered(row: Logits, best: float, sampling: SamplingParams) -> tuple[Ids, Floats]:
    """What the filters keep, less tokens so far below the best that no noise can lift them. See survivors."""
    everyone = None
    if _nucleus_of_all(sampling, len(row)):
        everyone = float(weights(heated(row, best, sampling.temperature)).sum())
    ids = np.flatnonzero(row >= np.float32(_floor(row, best, sampling, everyone)))
    if sampling.top_p < 1.0 or 0 < sampling.top_k < len(ids):
        ids = ranked(row, ids)[: sampling.top_k or None]
    scores = scaled(row, best, sampling.temperature, ids)
    if sampling.min_p > 0.0:
        kept = scores >= math.log(sampling.min_p)
        ids, scores = ids[kept], scores[kept]
    if sampling.top_p < 1.0:
        kept_count = _nucleus(weights(heated(row[ids], best, sampling.temperature)), sampling.top_p, everyone)
        ids = np.sort(ids[:kept_count])
    elif sampling.top_k:
        ids = np.sort(ids)
    else:
        return ids, scores
    return ids, scaled(row, best, sampling.temperature, ids)


def scaled(row: Logits, best: float, temperature: float, ids: Ids) -> Floats:
    """(logit - best) / temperature of `ids`; -inf where that is beyond float64."""
    with np.errstate(over="ignore"):
        return (row[ids].astype(np.float64) - best) / max(temperature, COLDEST)


def _filtered(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _nucleus_of_all(sampling: SamplingParams, size: int) -> bool:
    """Whether top_p is a share of the whole row's mass."""
    return sampling.top_p < 1.0 and sampling.min_p == 0.0 and not 0 < sampling.top_k < size


def _floor(row: Logits, best: float, sampling: SamplingParams, everyone: float | None) -> float:
    """A logit that everyone who survives reaches, and not many more do. everyone: see _nucleus."""
    depths = []
    if sampling.min_p > 0.0:
        depths.append(math.log(sampling.min_p))
    if everyone is not None:
        # Tokens below half of (1 - top_p) mass / size weigh less than (1 - top_p) mass together, rounding included.
        depths.append(math.log((1.0 - sampling.top_p) * everyone / UNIT / len(row) / 2))
    if sampling.top_p == 1.0:
        depths.append(-NOISE_RANGE)
    temperature = max(sampling.temperature, COLDEST)
    floor = max((best + temperature * (depth - _SLACK) for depth in depths), default=_LOWEST)
    floor -= 1e-6 * abs(best)  # half a step of float32 around the best, and as much again
    if 0 < sampling.top_k < len(row):
        floor = max(floor, reached_by(row, sampling.top_k))
    return max(floor, _LOWEST)


def _nucleus(own: Floats, top_p: float, everyone: float | None) -> int:
    """How many tokens, best first, are the fewest whose probabilities reach top_p. own: their weights; everyone: the
    whole row's, of which the probabilities are shares, else those of `own`."""
    reached = own.cumsum()
    total = reached[-1] if everyone is None else everyone
    return int(np.searchsorted(reached, top_p * total)) + 1
