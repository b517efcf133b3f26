"""Edits of the logits that requests ask for: bias and penalties, then masks, for all rows of a batch at once.

Owns the arithmetic on (row, id) places. Every row's edits touch that row alone, element by element.

The outcome is that of vLLM's order (allowed ids, bad words, min_tokens, logit_bias, then repetition, frequency and
presence penalties; vllm/v1/sample/sampler.py): a masked logit is -inf, which the finite edits leave as it is, so the
masks may come last.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.history import TokenHistory
from headrace.engine.logit_row import Logits
from headrace.engine.rules import NO_TOKEN, Ids, Rules

_Floats = npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class RowRules:
    """A row of the batch, the rules of its sequence, and the sequence's tokens."""

    row: int
    rules: Rules
    history: TokenHistory


def edit(logits: Logits, edited: list[RowRules]) -> None:
    """Change the rows of logits [row, vocabulary] (finite) in place. Only masks make a logit -inf: what
    bias and penalties take beyond float32 stays at its end."""
    _bias(logits, [one for one in edited if len(one.rules.biased)])
    _penalise(logits, [one for one in edited if one.rules.penalised])
    for one in edited:
        if one.rules.closed is not None:
            np.putmask(logits[one.row], one.rules.closed, -np.inf)
    _ban(logits, [(one.row, _banned(one.rules, one.history)) for one in edited])


def _bias(logits: Logits, edited: list[RowRules]) -> None:
    if edited:
        places = _places([(one.row, one.rules.biased) for one in edited])
        _put(logits, places, logits[places] + np.concatenate([one.rules.bias for one in edited]))


def _penalise(logits: Logits, edited: list[RowRules]) -> None:
    """Repetition (Keskar et al., arXiv 1909.05858) over all known tokens, frequency and presence over generated."""
    if not edited:
        return
    known = [one.history.counts() for one in edited]
    sampling = [one.rules.sampling for one in edited]
    sizes = [len(ids) for ids, _ in known]
    repetition = np.repeat([one.repetition_penalty for one in sampling], sizes)
    counts = np.concatenate([count for _, count in known])
    places = _places([(one.row, ids) for one, (ids, _) in zip(edited, known, strict=True)])
    values = logits[places].astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(values > 0.0, values / repetition, values * repetition)
    values -= np.repeat([one.frequency_penalty for one in sampling], sizes) * counts
    values -= np.repeat([one.presence_penalty for one in sampling], sizes) * (counts > 0)
    _put(logits, places, values)


def _ban(logits: Logits, banned: list[tuple[int, Ids]]) -> None:
    logits[_places(banned)] = -np.inf


def _banned(rules: Rules, history: TokenHistory) -> Ids:
    """Ids that may not come next: bad words of one token, the last tokens of those whose head the generated tokens
    end with (as in vllm/v1/sample/ops/bad_words.py), and stop ids while min_tokens are not generated."""
    banned = [rules.banned]
    if len(rules.lasts):
        longest = rules.heads.shape[1]
        tail = history.tail(longest)
        ending = np.array([NO_TOKEN] * (longest - len(tail)) + tail, dtype=np.int64)
        banned.append(rules.lasts[((rules.heads == ending) | (rules.heads < 0)).all(axis=1)])
    if history.generated < rules.sampling.min_tokens:
        banned.append(rules.stops)
    return np.concatenate(banned)


def _places(ids: list[tuple[int, Ids]]) -> tuple[Ids, Ids]:
    """(row, id) pairs as one index into the logits."""
    rows = np.repeat([row for row, _ in ids], [len(own) for _, own in ids])
    return rows, np.concatenate([own for _, own in ids])


def _put(logits: Logits, places: tuple[Ids, Ids], values: _Floats) -> None:
    logits[places] = np.clip(values, -_LARGEST, _LARGEST)
