"""Reports: the logprobs of one answer, checked against what was asked for and told in the vocabulary's bytes.

Knows no text of the answer but how long it was at each token.
"""

from collections.abc import Sequence

from headrace.core.errors import InternalError
from headrace.core.jobs import TokenEvent
from headrace.core.logprobs import TokenLogprob
from headrace.core.sampling import SamplingParams
from headrace.router.models import TextModel
from headrace.router.reading import Reading


class Reports:
    """What a worker reports beside tokens. It is asked for in every event that has it, or the answer is refused."""

    def __init__(self, text: TextModel, reading: Reading, sampling: SamplingParams) -> None:
        self._text = text
        self._wanted = sampling.logprobs is not None
        self._prompt_wanted = sampling.prompt_logprobs is not None
        self._prompt_offsets = reading.offsets

    def of_tokens(self, event: TokenEvent, first: int, offsets: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Of the len(offsets) tokens from index `first` of the event's. Raises InternalError if they are missing."""
        if not self._wanted:
            return ()
        if len(event.logprobs) != len(event.token_ids):
            raise InternalError(f"A worker reported {len(event.logprobs)} logprobs for {len(event.token_ids)} tokens.")
        return self._spelled(event.logprobs[first : first + len(offsets)], offsets)

    def of_prompt(self, event: TokenEvent) -> tuple[TokenLogprob, ...]:
        """From the event of the first token, not spelled yet. Raises InternalError if they are missing."""
        if not self._prompt_wanted:
            return ()
        due = len(self._prompt_offsets) - 1
        if len(event.prompt_logprobs) != due:
            raise InternalError(f"A worker reported {len(event.prompt_logprobs)} prompt logprobs where {due} were due.")
        return event.prompt_logprobs

    def spelled_prompt(self, logprobs: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        """What `of_prompt` gave, told in bytes. For a long prompt this takes long: it may run on any thread."""
        return self._spelled(logprobs, self._prompt_offsets[1:])

    def _spelled(self, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]) -> tuple[TokenLogprob, ...]:
        piece = self._text.piece
        return tuple(
            TokenLogprob(
                token=one.token,
                logprob=one.logprob,
                rank=one.rank,
                top=one.top,
                piece=piece(one.token),
                top_pieces=tuple(piece(token) for token, _ in one.top),
                offset=offset,
            )
            for one, offset in zip(logprobs, offsets, strict=True)
        )
