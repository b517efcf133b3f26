"""Text out: one choice's ids become text, chunks and the answer's ending. Knows tokens and text, no worker.

The ending decided here wins over any worker's: what a worker produced beyond it is discarded.
"""

from headrace.core.errors import InternalError
from headrace.core.generation import Chunk, FinishReason, Usage
from headrace.core.jobs import TokenEvent
from headrace.core.resume import ResumePoint
from headrace.core.sampling import SamplingParams
from headrace.router.models import TextModel
from headrace.text.stops import StopMatcher


class Answer:
    """One generation as its caller sees it. sampling: resolved. tokens: all generated ids, append-only."""

    def __init__(self, text: TextModel, prompt_tokens: int, prompt_digest: bytes, sampling: SamplingParams) -> None:
        assert sampling.seed is not None
        assert sampling.max_tokens is not None
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        self._prompt_tokens = prompt_tokens
        self._prompt_digest = prompt_digest
        self._seed = sampling.seed
        self._max_tokens = sampling.max_tokens
        model_stops = frozenset() if sampling.ignore_eos else text.vocabulary.stop_ids
        self._stop_ids = model_stops | frozenset(sampling.stop_token_ids)
        self._detokenizer = text.detokenizer()
        self._stops = StopMatcher(sampling.stop)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def usage(self) -> Usage:
        return Usage(self._prompt_tokens, len(self.tokens), self.cached_tokens or 0)

    def replay(self, tokens: tuple[int, ...]) -> None:
        """Take over what an earlier try already gave to the caller: state is rebuilt, nothing is said again."""
        for token in tokens:
            if self.finished:
                return
            self._push(token)

    def accept(self, event: TokenEvent) -> Chunk | None:
        """The chunk that an event brings; None if nothing in it is new. Raises InternalError on a gap."""
        start = len(self.tokens)
        if event.position > start:
            raise InternalError(f"Token {start} of the answer is missing: a worker went on at {event.position}.")
        fresh = event.token_ids[start - event.position :]
        if not fresh or self.finished:
            return None
        if self.cached_tokens is None:
            self.cached_tokens = event.cached_tokens
        parts: list[str] = []
        for token in fresh:
            parts.append(self._push(token))
            if self.finished:
                break
        return self._chunk(start, "".join(parts))

    def end(self, reason: FinishReason) -> Chunk:
        """The worker ended the answer for a reason of its own, such as a full context."""
        text = self._finish(reason)
        return self._chunk(len(self.tokens), text)

    def closing(self) -> Chunk:
        """The last chunk of an answer that had ended before anything new was generated."""
        return self._chunk(len(self.tokens), "")

    def _push(self, token: int) -> str:
        self.tokens.append(token)
        if token in self._stop_ids:
            return self._finish(FinishReason.STOP)
        text, stopped = self._stops.push(self._detokenizer.push(token))
        if stopped:
            self.finish_reason = FinishReason.STOP
        elif len(self.tokens) >= self._max_tokens:
            text += self._finish(FinishReason.LENGTH)
        return text

    def _finish(self, reason: FinishReason) -> str:
        """The held-back text. A stop string in it ends the answer as any other would."""
        text, stopped = self._stops.push(self._detokenizer.flush())
        self.finish_reason = FinishReason.STOP if stopped else reason
        return text if stopped else text + self._stops.flush()

    def _chunk(self, start: int, text: str) -> Chunk:
        count = len(self.tokens)
        return Chunk(
            choice=0,
            position=start,
            text=text,
            token_ids=tuple(self.tokens[start:]),
            resume=ResumePoint(self._seed, self._prompt_digest, self.tokens, count),
            finish_reason=self.finish_reason,
            usage=self.usage if self.finished else None,
        )
