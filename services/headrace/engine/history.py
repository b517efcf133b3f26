"""The tokens of one sequence, counted for penalties.

Owns the counts; the list of tokens is the sequence's own, which only ever grows.
"""

import numpy as np
import numpy.typing as npt

_Ids = npt.NDArray[np.int64]

_FIRST_ROOM = 16


class TokenHistory:
    """tokens: prompt and generated ids; the first `prompt_len` are the prompt."""

    def __init__(self, tokens: list[int], prompt_len: int) -> None:
        self.tokens = tokens
        self.prompt_len = prompt_len
        self._counted = 0
        self._places: dict[int, int] = {}
        self._ids: _Ids = np.empty(0, dtype=np.int64)
        self._counts: _Ids = np.empty(0, dtype=np.int64)

    @property
    def generated(self) -> int:
        """How many tokens are generated."""
        return len(self.tokens) - self.prompt_len

    def tail(self, count: int) -> list[int]:
        """The last `count` generated ids, or as many as there are."""
        return self.tokens[max(self.prompt_len, len(self.tokens) - count) :]

    def counts(self) -> tuple[_Ids, _Ids]:
        """The distinct ids of the sequence, in no order, and how often each was generated (0: only in the prompt).

        Costs what the tokens since the last call cost. The arrays hold until the next call: do not write to them.
        """
        if not self._counted:
            self._count_all()
        for token in self.tokens[self._counted :]:
            self._count(token)
        self._counted = len(self.tokens)
        distinct = len(self._places)
        return self._ids[:distinct], self._counts[:distinct]

    def _count_all(self) -> None:
        self._ids, places = np.unique(np.asarray(self.tokens, dtype=np.int64), return_inverse=True)
        self._counts = np.bincount(places[self.prompt_len :], minlength=len(self._ids))
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}
        self._counted = len(self.tokens)

    def _count(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            more = max(_FIRST_ROOM, place)
            self._ids = np.concatenate((self._ids, np.zeros(more, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(more, dtype=np.int64)))
        self._ids[place] = token
        self._counts[place] += 1
