"""Raw log-probabilities: log-softmax of the model's logits as they are, before sampling changes them.

Owns the report of one token. Computed from float32 logits: float32 terms, rounded to multiples of 2^-34 and
added exactly, subtracted in float64.
"""

import math

import numpy as np

from headrace.core.errors import InternalError
from headrace.core.logprobs import TokenLogprob
from headrace.engine.logit_row import Logits
from headrace.engine.row_kernels import RowKernels


def token_logprob(row: Logits, token: int, count: int, rows: RowKernels) -> TokenLogprob:
    """`token` among finite logits [vocabulary], with the `count` likeliest. Equal logits rank in order of id."""
    mass, before, top = rows.standing(row, token, count)
    total = float(row[top[0]] if len(top) else row.max()) + math.log(mass)
    logprobs = (row[top].astype(np.float64) - total).tolist()
    ranked = tuple(zip(top.tolist(), logprobs, strict=True))
    return TokenLogprob(token, float(row[token]) - total, before + 1, ranked)


def score(logits: Logits, tokens: list[int], count: int, rows: RowKernels) -> list[TokenLogprob]:
    """Of each row of [row, vocabulary] its token. Raises InternalError if a value is not finite."""
    if not rows.best(logits)[1].all():
        raise not_finite()
    return [token_logprob(row, token, count, rows) for row, token in zip(logits, tokens, strict=True)]


def not_finite() -> InternalError:
    return InternalError(
        "The model's logits are not finite numbers.",
        remedy="Check the model's files, or serve it with another --dtype.",
    )
