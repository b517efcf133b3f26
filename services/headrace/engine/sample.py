"""Sampling: logits and parameters to the next token, reproducible token by token (decision 10).

Owns the order: check, edit, then the best token or a draw among those that survive the filters; logprobs are raw.
It knows no model and no pages. What each parameter does stands in docs/sampling.md.
"""

from weakref import WeakKeyDictionary

import numpy as np

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.logprobs import TokenLogprob
from headrace.core.vocabulary import Vocabulary
from headrace.engine.edits import RowRules, edit
from headrace.engine.history import TokenHistory
from headrace.engine.logit_row import Ids, Logits
from headrace.engine.logprobs import not_finite, token_logprob
from headrace.engine.native.sampling import pick_rows
from headrace.engine.row_kernels import RowKernels
from headrace.engine.rules import Rules
from headrace.engine.runner import Draw, Drawn


class Sampler:
    """Draws tokens; keeps the rules of each sequence for as long as its history lives."""

    def __init__(self, vocabulary: Vocabulary, rows: RowKernels | None = None) -> None:
        """rows: who computes over the vocabulary; None picks the fastest there is, which changes no outcome."""
        self._vocabulary = vocabulary
        self.rows = rows or pick_rows()
        self._rules: WeakKeyDictionary[TokenHistory, Rules] = WeakKeyDictionary()

    def sample(self, logits: Logits, draws: list[Draw]) -> list[Drawn | HeadraceError]:
        """A token a row of float32 [row, vocabulary] (overwritten), or the error that fails that row alone:
        its logits are not finite, or its parameters leave no token. A row's outcome does not depend on other rows."""
        best, finite = self.rows.best(logits)
        edited = [one for one in self._row_rules(draws) if finite[one.row] and not one.rules.empty]
        raw = {one.row: logits[one.row].copy() for one in edited if one.rules.sampling.logprobs is not None}
        if edited:
            edit(logits, edited)
        errors: dict[int, HeadraceError] = {int(row): not_finite() for row in np.flatnonzero(~finite)}
        for one in edited:
            best[one.row] = self.rows.best(logits[one.row : one.row + 1])[0][0]
            if np.isneginf(logits[one.row, best[one.row]]):
                errors[one.row] = _nothing_left()
        tokens = self._choose(logits, best, {row: one for row, one in enumerate(draws) if row not in errors})
        return [
            errors.get(row) or Drawn(tokens[row], self._report(raw.get(row, logits[row]), tokens[row], one))
            for row, one in enumerate(draws)
        ]

    def _choose(self, logits: Logits, best: Ids, draws: dict[int, Draw]) -> dict[int, int]:
        """The tokens of the rows in `draws`. best: of each row of logits."""
        tokens = {row: int(best[row]) for row, one in draws.items() if one.sampling.greedy}
        if drawn := {row: one for row, one in draws.items() if not one.sampling.greedy}:
            tokens.update(zip(drawn, self.rows.draw(logits, best, drawn), strict=True))
        return tokens

    def _report(self, raw: Logits, token: int, one: Draw) -> TokenLogprob | None:
        count = one.sampling.logprobs
        return None if count is None else token_logprob(raw, token, count, self.rows)

    def _row_rules(self, draws: list[Draw]) -> list[RowRules]:
        return [RowRules(row, self._rules_of(one), one.history) for row, one in enumerate(draws)]

    def _rules_of(self, one: Draw) -> Rules:
        rules = self._rules.get(one.history)
        if rules is None or rules.sampling is not one.sampling:
            rules = self._rules[one.history] = Rules.of(one.sampling, self._vocabulary)
        return rules


def _nothing_left() -> InvalidRequest:
    return InvalidRequest(
        "allowed_token_ids, bad_words and min_tokens leave no token that may be drawn.", remedy="Loosen one of them."
    )
