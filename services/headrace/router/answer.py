"""Text out: one choice's ids become text, chunks and the answer's ending. Knows tokens and text, no worker.

The ending decided here wins over any worker's: what a worker produced beyond it is discarded.
"""

from dataclasses import replace

from headrace.core.errors import InternalError
from headrace.core.generation import Chunk, FinishReason, Usage
from headrace.core.jobs import TokenEvent
from headrace.core.logprobs import TokenLogprob
from headrace.core.resume import ResumePoint
from headrace.core.sampling import SamplingParams
from headrace.router.models import TextModel
from headrace.router.reading import Reading
from headrace.router.reports import Reports
from headrace.text.answer_text import AnswerText


class Answer:
    """One generation as its caller sees it. tokens: all generated ids, append-only."""

    def __init__(
        self, text: TextModel, reading: Reading, prompt_digest: bytes, sampling: SamplingParams, *, echo: bool = False
    ) -> None:
        """sampling: resolved. echo: the first chunk tells the prompt."""
        assert sampling.seed is not None
        assert sampling.max_tokens is not None
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        self._prompt_tokens = len(reading.tokens)
        self._echo = reading.echo if echo else None
        self._reports = Reports(text, reading, sampling)
        self._prompt_digest = prompt_digest
        self._seed = sampling.seed
        self._min_tokens = sampling.min_tokens
        self._max_tokens = sampling.max_tokens
        self._include_stop = sampling.include_stop_str_in_output
        model_stops = frozenset() if sampling.ignore_eos else text.vocabulary.stop_ids
        self._stop_ids = model_stops | frozenset(sampling.stop_token_ids)
        self._text = AnswerText(
            text.detokenizer(reading.tokens), sampling.stop, keep_stop=sampling.include_stop_str_in_output
        )

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def usage(self) -> Usage:
        # Where it goes on from a resume point, tokens of the answer may have been cached, too.
        return Usage(self._prompt_tokens, len(self.tokens), min(self.cached_tokens or 0, self._prompt_tokens))

    def replay(self, tokens: tuple[int, ...]) -> None:
        """Take over what an earlier try already gave to the caller: state is rebuilt, nothing is said again."""
        for token in tokens:
            if self.finished:
                return
            self._push(token)

    def accept(self, event: TokenEvent) -> Chunk | None:
        """The chunk that an event brings; None if nothing in it is new. Raises InternalError on a gap, and where
        what was to be reported is missing."""
        start = len(self.tokens)
        if event.position > start:
            raise InternalError(f"Token {start} of the answer is missing: a worker went on at {event.position}.")
        known = start - event.position
        fresh = event.token_ids[known:]
        if not fresh or self.finished:
            return None
        if self.cached_tokens is None:
            self.cached_tokens = event.cached_tokens
        parts: list[str] = []
        offsets: list[int] = []
        for token in fresh:
            offsets.append(self._text.characters)
            parts.append(self._push(token))
            if self.finished:
                break
        chunk = self._chunk(start, "".join(parts), self._reports.of_tokens(event, known, offsets))
        if start:
            return chunk
        return replace(chunk, prompt_logprobs=self._reports.of_prompt(event), prompt=self._echo)

    def spelled(self, chunk: Chunk) -> Chunk:
        """`chunk` with the prompt's logprobs, if it has them, told in bytes. May take long and run on any thread."""
        return replace(chunk, prompt_logprobs=self._reports.spelled_prompt(chunk.prompt_logprobs))

    def end(self, reason: FinishReason) -> Chunk:
        """The worker ended the answer for a reason of its own, such as a full context."""
        text = self._finish(reason)
        return self._chunk(len(self.tokens), text)

    def closing(self) -> Chunk:
        """The last chunk of an answer that had ended before anything new was generated."""
        return self._chunk(len(self.tokens), "")

    def _push(self, token: int) -> str:
        self.tokens.append(token)
        ends = self._may_stop and token in self._stop_ids
        if ends and not self._include_stop:
            return self._finish(FinishReason.STOP)
        text, stopped = self._text.push(token, armed=self._may_stop)
        if stopped:
            self.finish_reason = FinishReason.STOP
        elif ends:
            text += self._finish(FinishReason.STOP)
        elif len(self.tokens) >= self._max_tokens:
            text += self._finish(FinishReason.LENGTH)
        return text

    @property
    def _may_stop(self) -> bool:
        """Whether the last token may be, or complete, a stop: the first min_tokens tokens may not."""
        return len(self.tokens) > self._min_tokens

    def _finish(self, reason: FinishReason) -> str:
        """The held-back text. A stop string in it ends the answer as any other would."""
        text, stopped = self._text.flush(armed=self._may_stop)
        self.finish_reason = FinishReason.STOP if stopped else reason
        return text

    def _chunk(self, start: int, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> Chunk:
        count = len(self.tokens)
        return Chunk(
            choice=0,
            position=start,
            text=text,
            token_ids=tuple(self.tokens[start:]),
            resume=ResumePoint(self._seed, self._prompt_digest, self.tokens, count),
            finish_reason=self.finish_reason,
            usage=self.usage if self.finished else None,
            logprobs=logprobs,
        )
