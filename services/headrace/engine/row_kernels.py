"""The RowKernels border: what sampling computes over whole rows of logits, and numpy's way, which is the specification.

Every implementation gives the same tokens and, to the bit, the same numbers; a row's never depend on other rows.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine.logit_row import Ids, Logits, best_ids, mass
from headrace.engine.noise import Floats, Stream, draw
from headrace.engine.runner import Draw
from headrace.engine.survivors import survivors


class RowKernels(Protocol):
    def best(self, logits: Logits) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The first of the largest values of each row of [row, vocabulary], and whether all of the row is finite.
        Of a row that is not, any id."""
        ...

    def draw(self, logits: Logits, best: Ids, draws: dict[int, Draw]) -> list[int]:
        """A token for each row in `draws`, whose logits are finite or -inf. best: the best token of each row."""
        ...

    def standing(self, row: Logits, token: int, count: int) -> tuple[float, int, Ids]:
        """Of a row of logits: its mass (see logit_row), how many tokens rank before `token`, and the `count` best, best
        first. Of equal ones the lower id ranks first. -inf, which not all may be, is nobody's best."""
        ...


class NumpyRows:
    """See RowKernels."""

    def best(self, logits: Logits) -> tuple[Ids, npt.NDArray[np.bool_]]:
        best = logits.argmax(axis=1)
        return best, np.isfinite(logits[np.arange(len(logits)), best]) & np.isfinite(logits.min(axis=1))

    def draw(self, logits: Logits, best: Ids, draws: dict[int, Draw]) -> list[int]:
        streams: list[Stream] = []
        ids: list[Ids] = []
        scores: list[Floats] = []
        for row, one in draws.items():
            streams.append(Stream(one.sampling.seed or 0, one.choice, one.position))
            kept, score = survivors(logits[row], float(logits[row, best[row]]), one.sampling, streams[-1])
            ids.append(kept)
            scores.append(score)
        return draw(streams, ids, scores)

    def standing(self, row: Logits, token: int, count: int) -> tuple[float, int, Ids]:
        before = int(np.count_nonzero(row > row[token])) + int(np.count_nonzero(row[:token] == row[token]))
        top = best_ids(row, count) if count else np.empty(0, dtype=np.int64)
        return mass(row, float(row.max()), 1.0), before, top
