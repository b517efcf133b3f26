"""One whole choice, gathered from its chunks. Knows no JSON."""

from dataclasses import dataclass

from headrace.core.errors import InternalError
from headrace.core.generation import Chunk, FinishReason, PromptEcho, Usage
from headrace.core.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Answered:
    """usage: what its last chunk said. The rest is empty where the request did not ask for it."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    prompt_index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: PromptEcho | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Gathering:
    """A choice's chunks so far."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def whole(self, prompt_index: int) -> Answered:
        """After the last chunk."""
        first, last = self._chunks[0], self._chunks[-1]
        if last.finish_reason is None or last.usage is None:
            raise InternalError("An answer ended without a finish_reason and usage.")
        return Answered(
            text="".join(chunk.text for chunk in self._chunks),
            finish_reason=last.finish_reason,
            usage=last.usage,
            prompt_index=prompt_index,
            token_ids=tuple(token for chunk in self._chunks for token in chunk.token_ids),
            logprobs=tuple(logprob for chunk in self._chunks for logprob in chunk.logprobs),
            prompt=first.prompt,
            prompt_logprobs=first.prompt_logprobs,
        )
