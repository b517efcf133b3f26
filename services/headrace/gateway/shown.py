"""What an answer shows beside its text, and which pieces of it are worth an event. Values only."""

from dataclasses import dataclass, replace

from headrace.core.generation import Chunk, FinishReason


@dataclass(frozen=True, slots=True)
class Shown:
    """logprobs, prompt_logprobs: so many alternatives beside each token; None shows none. echo: the prompt's text
    before the answer's. answer: False shows the echo alone. token_ids: ids of prompt and answer. as_token_ids: tokens
    are written as `token_id:17` instead of as text.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    answer: bool = True
    token_ids: bool = False
    as_token_ids: bool = False

    @property
    def prompt(self) -> bool:
        """Whether the prompt itself is needed."""
        return self.echo or self.token_ids

    def worth(self, chunk: Chunk) -> bool:
        """Whether `chunk` has anything to show: its text may still be held back."""
        told = self.logprobs is not None or self.token_ids
        return bool(chunk.text or chunk.finish_reason is not None or (told and chunk.token_ids))

    def of(self, chunk: Chunk) -> Chunk:
        """`chunk` as it is shown. Without an answer, the one token that had to be generated is left out."""
        if self.answer:
            return chunk
        usage = None if chunk.usage is None else replace(chunk.usage, completion_tokens=0)
        reason = None if chunk.finish_reason is None else FinishReason.LENGTH
        return replace(chunk, text="", token_ids=(), logprobs=(), finish_reason=reason, usage=usage)
