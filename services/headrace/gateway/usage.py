"""Token counts of a whole HTTP request, and OpenAI's `usage`."""

from collections.abc import Iterable
from typing import Any

from headrace.core.generation import Usage


def total_usage(counts: Iterable[tuple[int, Usage]]) -> Usage:
    """Counts of a whole request, from (prompt index, usage) of each choice.

    A prompt that several choices answer is counted once. Cached of it is what every one of them found cached: what
    one choice computed and another then found was computed for this request.
    """
    prompts: dict[int, Usage] = {}
    completion_tokens = 0
    for prompt_index, usage in counts:
        first = prompts.setdefault(prompt_index, usage)
        if usage.cached_tokens < first.cached_tokens:
            prompts[prompt_index] = usage
        completion_tokens += usage.completion_tokens
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts.values()),
        completion_tokens=completion_tokens,
        cached_tokens=sum(usage.cached_tokens for usage in prompts.values()),
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
