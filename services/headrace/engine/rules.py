"""What a request's sampling changes in its logits, as arrays: made once a sequence, used at every step.

Owns the reading of SamplingParams against a vocabulary. Ids outside the vocabulary name no token and are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]

# Where a bad word is shorter than the longest: any token fits. NO_TOKEN fits only there.
ANY_TOKEN = -1
NO_TOKEN = -2


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one sequence. All ids are distinct.

    biased, bias: ids and what is added to their logits. closed: [vocabulary], whether allowed_token_ids leaves an id
    out; None is off. banned: bad words of one token. heads: [longer bad word, head], all but the last token of each,
    filled up with ANY_TOKEN on the left; lasts: [longer bad word], their last tokens. stops: ids not to be drawn
    before min_tokens.
    """

    sampling: SamplingParams
    biased: Ids
    bias: npt.NDArray[np.float64]
    closed: npt.NDArray[np.bool_] | None
    banned: Ids
    heads: Ids
    lasts: Ids
    stops: Ids

    @staticmethod
    def of(sampling: SamplingParams, vocabulary: Vocabulary) -> "Rules":
        size = vocabulary.size
        words = [word for word in sampling.bad_word_ids if min(word) >= 0 and max(word) < size]
        longer = [word for word in words if len(word) > 1]
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else vocabulary.stop_ids)
        biased, bias = _summed(sampling.logit_bias, size)
        return Rules(
            sampling=sampling,
            biased=biased,
            bias=bias,
            closed=None if sampling.allowed_token_ids is None else _others(sampling.allowed_token_ids, size),
            banned=_ids((word[0] for word in words if len(word) == 1), size),
            heads=_heads(longer),
            lasts=np.array([word[-1] for word in longer], dtype=np.int64),
            stops=_ids(stops if sampling.min_tokens else (), size),
        )

    @property
    def penalised(self) -> bool:
        sampling = self.sampling
        return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def empty(self) -> bool:
        """The logits stay as they are."""
        sizes = len(self.biased) + len(self.banned) + len(self.lasts) + len(self.stops)
        return sizes == 0 and self.closed is None and not self.penalised


def _ids(ids: Iterable[int], size: int) -> Ids:
    return np.array(sorted({token for token in ids if token < size}), dtype=np.int64)


def _others(ids: Iterable[int], size: int) -> npt.NDArray[np.bool_]:
    others = np.ones(size, dtype=np.bool_)
    others[_ids(ids, size)] = False
    return others


def _summed(biases: tuple[tuple[int, float], ...], size: int) -> tuple[Ids, npt.NDArray[np.float64]]:
    total: dict[int, float] = {}
    for token, bias in biases:
        if token < size:
            total[token] = total.get(token, 0.0) + bias
    return np.array(list(total), dtype=np.int64), np.array(list(total.values()), dtype=np.float64)


def _heads(words: list[tuple[int, ...]]) -> Ids:
    longest = max(map(len, words), default=1) - 1
    rows = [(ANY_TOKEN,) * (longest + 1 - len(word)) + word[:-1] for word in words]
    return np.array(rows, dtype=np.int64).reshape(len(words), longest)
