"""Sampling: logits and parameters to the next token, reproducible token by token (decision 10).

Owns the filters and the noise. The noise of a token is a function of (seed, choice, position, token), so a draw
depends neither on the batch nor on what was drawn before. A token is drawn as the largest of logit / temperature +
Gumbel noise (the Gumbel-max trick), among the tokens that survive top-k and top-p.
"""

import numpy as np
import numpy.typing as npt

from headrace.core.sampling import SamplingParams
from headrace.engine.philox import philox
from headrace.engine.runner import Draw

_Floats = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]

_FIRST_LOOK = 512
_WORD = 2**32
# The largest and the smallest noise that 32 bits can make: log(2^33), -log(log(2^33)).
_NOISE_RANGE = float(np.log(2.0**33) + np.log(np.log(2.0**33)))


def sample(logits: npt.NDArray[np.float32], draws: list[Draw]) -> list[int | None]:
    """One token a row of [row, vocabulary]; None where a row holds a value that is not finite."""
    pairs = zip(logits, draws, strict=True)
    return [draw_token(row, draw) if np.isfinite(row).all() else None for row, draw in pairs]


def draw_token(logits: npt.NDArray[np.float32], draw: Draw) -> int:
    """The next token. Among equals the lowest id wins."""
    sampling = draw.sampling
    if sampling.greedy:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / sampling.temperature
    tokens = survivors(scaled, sampling)
    scores = scaled[tokens] + gumbel(sampling.seed or 0, draw.choice, draw.position, tokens)
    return int(tokens[scores.argmax()])


def survivors(scaled: _Floats, sampling: SamplingParams) -> _Ids:
    """Ids in ascending order that top_k, then top_p of what top_k left, keep; the best token always survives.

    With neither, tokens so far below the best that no noise can lift them are left out.
    """
    limit = min(sampling.top_k or len(scaled), len(scaled))
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, limit, sampling.top_p)
    elif limit < len(scaled):
        kept = _best(scaled, limit)
    else:
        return np.flatnonzero(scaled >= scaled.max() - _NOISE_RANGE)
    return np.sort(kept)


def gumbel(seed: int, choice: int, position: int, tokens: _Ids) -> _Floats:
    """Gumbel noise of each of `tokens` (ascending): four neighbouring ids share one counter."""
    quads = tokens >> 2
    begins = np.concatenate(([True], quads[1:] != quads[:-1]))
    counter = quads[begins].astype(np.uint64)
    words = philox(
        (counter, np.full_like(counter, position), np.full_like(counter, choice), np.zeros_like(counter)),
        (seed % _WORD, (seed >> 32) % _WORD),
    )
    chosen = words.ravel()[4 * (np.cumsum(begins) - 1) + (tokens & 3)]
    uniform = (chosen.astype(np.float64) + 0.5) / _WORD
    noise: _Floats = -np.log(-np.log(uniform))
    return noise


def _best(scaled: _Floats, count: int) -> _Ids:
    """The `count` best ids, best first; equal ones in order of id."""
    if count < len(scaled):
        threshold = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
        candidates = np.flatnonzero(scaled >= threshold)
    else:
        candidates = np.arange(len(scaled))
    order = np.argsort(-scaled[candidates], kind="stable")
    return candidates[order][:count]


def _nucleus(scaled: _Floats, limit: int, top_p: float) -> _Ids:
    """The fewest best of the `limit` best ids whose probabilities, among those, reach top_p."""
    best = _best(scaled, limit) if limit < len(scaled) else None
    weights = np.exp(scaled - scaled.max())
    total = weights.sum() if best is None else weights[best].sum()
    for look in (_FIRST_LOOK, limit):  # the nucleus is nearly always small: look there before sorting everything
        tokens = _best(scaled, min(look, limit)) if best is None else best
        reached = np.cumsum(weights[tokens]) >= top_p * total
        if reached.any():
            return tokens[: int(reached.argmax()) + 1]
    return tokens
