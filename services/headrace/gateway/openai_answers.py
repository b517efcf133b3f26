"""From `core.generation` chunks to OpenAI's response objects. Pure: dictionaries in, nothing sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.generation import Chunk, FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Answered:
    """One whole choice. usage: what its last chunk said."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    prompt_index: int


class AnswerFormat(Protocol):
    """How one endpoint writes its answers: stream chunks, and the whole."""

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The chunk before a choice's first text, where the format has one."""
        ...

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        """One chunk of the stream."""
        ...

    def closing(self, usage: Usage) -> dict[str, Any]:
        """The chunk with the token counts and no choices."""
        ...

    def whole(self, choices: list[Answered]) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        ...


class ChatFormat:
    """`chat.completion` and `chat.completion.chunk`. with_usage: chunks carry a `usage` field."""

    def __init__(self, id: str, model: str, created: int, with_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{id}", "created": created, "model": model}
        self._usage: dict[str, Any] = {"usage": None} if with_usage else {}

    def opening(self, choice: int) -> dict[str, Any] | None:
        return self._chunk(choice, {"role": "assistant", "content": ""}, None)

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        return self._chunk(chunk.choice, {"content": chunk.text} if chunk.text else {}, chunk.finish_reason)

    def closing(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_object(usage)}

    def whole(self, choices: list[Answered]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [_chat_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(_total(choices)),
        }

    def _chunk(self, choice: int, delta: dict[str, Any], reason: FinishReason | None) -> dict[str, Any]:
        piece = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason and reason.value}
        return {**self._head, "object": "chat.completion.chunk", "choices": [piece], **self._usage}


class CompletionFormat:
    """`text_completion`, whole and in chunks alike. with_usage: chunks carry a `usage` field."""

    def __init__(self, id: str, model: str, created: int, with_usage: bool) -> None:
        self._head = {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": model}
        self._usage: dict[str, Any] = {"usage": None} if with_usage else {}

    def opening(self, choice: int) -> dict[str, Any] | None:
        return None

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        return {
            **self._head,
            "choices": [_text_choice(chunk.choice, chunk.text, chunk.finish_reason)],
            **self._usage,
        }

    def closing(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def whole(self, choices: list[Answered]) -> dict[str, Any]:
        return {
            **self._head,
            "choices": [_text_choice(index, choice.text, choice.finish_reason) for index, choice in enumerate(choices)],
            "usage": usage_object(_total(choices)),
        }


def total_usage(counts: Iterable[tuple[int, Usage]]) -> Usage:
    """Counts of a whole request, from (prompt index, usage) of each choice, in the order of choices.

    A prompt that several choices answer is counted once, as its first choice saw it.
    """
    prompts: dict[int, Usage] = {}
    completion_tokens = 0
    for prompt_index, usage in counts:
        prompts.setdefault(prompt_index, usage)
        completion_tokens += usage.completion_tokens
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts.values()),
        completion_tokens=completion_tokens,
        cached_tokens=sum(usage.cached_tokens for usage in prompts.values()),
    )


def _total(choices: list[Answered]) -> Usage:
    return total_usage((choice.prompt_index, choice.usage) for choice in choices)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _chat_choice(index: int, choice: Answered) -> dict[str, Any]:
    message = {"role": "assistant", "content": choice.text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason.value}


def _text_choice(index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason and reason.value}
