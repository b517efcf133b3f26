"""The tokens of one sequence, counted for penalties.

Owns the counts; the list of tokens is the sequence's own, which only ever grows.
"""

import numpy as np
import numpy.typing as npt


class TokenHistory:
    """tokens: prompt and generated ids; the first `prompt_len` are the prompt."""

    def __init__(self, tokens: list[int], prompt_len: int) -> None:
        self.tokens = tokens
        self.prompt_len = prompt_len

    @property
    def generated(self) -> int:
        """How many tokens are generated."""
        return len(self.tokens) - self.prompt_len

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The distinct ids of the sequence, ascending, and how often each was generated (0: only in the prompt)."""
        ids, places = np.unique(np.asarray(self.tokens, dtype=np.int64), return_inverse=True)
        return ids, np.bincount(places[self.prompt_len :], minlength=len(ids))
