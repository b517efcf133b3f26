"""Raw log-probabilities: log-softmax of the model's logits as they are, before sampling changes them.

Owns the report of one token. Computed from float32 logits: float32 terms, added and subtracted in float64.
"""

import math

import numpy as np

from headrace.core.errors import InternalError
from headrace.core.logprobs import TokenLogprob
from headrace.engine.logit_row import Logits, best_ids, mass


def token_logprob(row: Logits, token: int, count: int) -> TokenLogprob:
    """`token` among finite logits [vocabulary], with the `count` likeliest. Equal logits rank in order of id."""
    best, value = float(row.max()), row[token]
    total = best + math.log(mass(row, best, 1.0))
    before = int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
    top = best_ids(row, count) if count else np.empty(0, dtype=np.int64)
    logprobs = (row[top].astype(np.float64) - total).tolist()
    return TokenLogprob(token, float(value) - total, before + 1, tuple(zip(top.tolist(), logprobs, strict=True)))


def score(logits: Logits, tokens: list[int], count: int) -> list[TokenLogprob]:
    """Of each row of [row, vocabulary] its token. Raises InternalError if a value is not finite."""
    if not (np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1))).all():
        raise not_finite()
    return [token_logprob(row, token, count) for row, token in zip(logits, tokens, strict=True)]


def not_finite() -> InternalError:
    return InternalError(
        "The model's logits are not finite numbers.",
        remedy="Check the model's files, or serve it with another --dtype.",
    )
