"""From `core.generation` chunks to OpenAI's response objects: dictionaries out, nothing sent."""

from typing import Any, Protocol

from headrace.core.generation import Chunk, FinishReason, PromptEcho, Usage
from headrace.core.logprobs import TokenLogprob
from headrace.gateway.answered import Answered
from headrace.gateway.openai_logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from headrace.gateway.shown import Shown
from headrace.gateway.usage import total_usage, usage_object


class AnswerFormat(Protocol):
    """How one endpoint writes its answers: stream chunks, and the whole. One object writes one answer."""

    def opening(self, first: Chunk) -> dict[str, Any] | None:
        """The chunk of the stream before what a choice's first chunk brings, where the format has one."""
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

    def __init__(self, id: str, model: str, created: int, with_usage: bool, shown: Shown) -> None:
        self._head = {"id": f"chatcmpl-{id}", "created": created, "model": model}
        self._usage: dict[str, Any] = {"usage": None} if with_usage else {}
        self._shown = shown

    def opening(self, first: Chunk) -> dict[str, Any] | None:
        chunk = self._chunk(first.choice, {"role": "assistant", "content": ""}, None, None)
        return {**chunk, **_prompt_ids(first.prompt, self._shown)}

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        logprobs = chat_logprobs(chunk.logprobs, self._shown) if chunk.logprobs else None
        delta = {"content": chunk.text} if chunk.text else {}
        return self._chunk(
            chunk.choice, delta, chunk.finish_reason, logprobs, _answer_ids(chunk.token_ids, self._shown)
        )

    def closing(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_object(usage)}

    def whole(self, choices: list[Answered]) -> dict[str, Any]:
        prompt = choices[0].prompt
        told = prompt_logprobs(choices[0].prompt_logprobs, self._shown)
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(_total(choices)),
            **_prompt_ids(prompt, self._shown),
            **({} if told is None else {"prompt_logprobs": told}),
        }

    def _choice(self, index: int, choice: Answered) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs, self._shown),
            "finish_reason": choice.finish_reason.value,
            **_answer_ids(choice.token_ids, self._shown),
        }

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        reason: FinishReason | None,
        logprobs: dict[str, Any] | None,
        token_ids: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        piece = {
            "index": choice,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason and reason.value,
            **(token_ids or {}),
        }
        return {**self._head, "object": "chat.completion.chunk", "choices": [piece], **self._usage}


class CompletionFormat:
    """`text_completion`, whole and in chunks alike. with_usage: chunks carry a `usage` field."""

    def __init__(self, id: str, model: str, created: int, with_usage: bool, shown: Shown) -> None:
        self._head = {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": model}
        self._usage: dict[str, Any] = {"usage": None} if with_usage else {}
        self._shown = shown
        # Of each choice that is streamed, how many characters stand before its answer.
        self._before: dict[int, int] = {}

    def opening(self, first: Chunk) -> dict[str, Any] | None:
        """The echo, where one is asked for."""
        if not self._shown.prompt:
            return None
        text, logprobs = self._echo(first.prompt, first.prompt_logprobs)
        self._before[first.choice] = len(text)
        choice = _text_choice(first.choice, text, None, logprobs) | _prompt_ids(first.prompt, self._shown)
        return {**self._head, "choices": [choice], **self._usage}

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        before = self._before.get(chunk.choice, 0)
        logprobs = None
        if chunk.logprobs:
            logprobs = completion_logprobs(chunk.logprobs, self._shown, prompt=None, start=before)
        choice = _text_choice(chunk.choice, chunk.text, chunk.finish_reason, logprobs)
        return {**self._head, "choices": [choice | _answer_ids(chunk.token_ids, self._shown)], **self._usage}

    def closing(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def whole(self, choices: list[Answered]) -> dict[str, Any]:
        return {
            **self._head,
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(_total(choices)),
        }

    def _choice(self, index: int, choice: Answered) -> dict[str, Any]:
        text, logprobs = self._echo(choice.prompt, choice.prompt_logprobs)
        answer = completion_logprobs(choice.logprobs, self._shown, prompt=None, start=len(text))
        if logprobs is not None and answer is not None:
            answer = {column: values + answer[column] for column, values in logprobs.items()}
        told = prompt_logprobs(choice.prompt_logprobs, self._shown)
        return {
            **_text_choice(index, text + choice.text, choice.finish_reason, answer),
            **_answer_ids(choice.token_ids, self._shown),
            **_prompt_ids(choice.prompt, self._shown),
            **({} if told is None else {"prompt_logprobs": told}),
        }

    def _echo(self, prompt: PromptEcho | None, logprobs: tuple[TokenLogprob, ...]) -> tuple[str, dict[str, Any] | None]:
        """The prompt's text and its logprobs, as far as they are asked for."""
        if not self._shown.echo or prompt is None:
            return "", None
        return prompt.text, completion_logprobs(logprobs, self._shown, prompt=prompt)


def _total(choices: list[Answered]) -> Usage:
    return total_usage((choice.prompt_index, choice.usage) for choice in choices)


def _answer_ids(token_ids: tuple[int, ...], shown: Shown) -> dict[str, Any]:
    return {"token_ids": token_ids} if shown.token_ids else {}


def _prompt_ids(prompt: PromptEcho | None, shown: Shown) -> dict[str, Any]:
    return {"prompt_token_ids": prompt.token_ids} if shown.token_ids and prompt is not None else {}


def _text_choice(index: int, text: str, reason: FinishReason | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason and reason.value}
