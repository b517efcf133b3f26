"""From OpenAI's request bodies to `core.generation`. Pure: no ids, no clocks, no calls."""

from dataclasses import dataclass, replace

from headrace.core.generation import ChatPrompt, Message, Prompt, TextPrompt
from headrace.core.logprobs import MAX_LOGPROBS
from headrace.core.sampling import SamplingParams
from headrace.gateway.errors import BadParameter
from headrace.gateway.openai_schema import ChatBody, ChatMessage, CompletionBody, GenerationBody, TokenizeBody
from headrace.gateway.shown import Shown

# OpenAI's default for /v1/completions; chats go on as far as the context allows.
COMPLETION_MAX_TOKENS = 16
_SEED_SPAN = 2**64


@dataclass(frozen=True, slots=True)
class Wanted:
    """One choice of the answer, before it has an id. prompt_index: which of the request's prompts it answers."""

    prompt: Prompt
    sampling: SamplingParams
    prompt_index: int


def chat_choices(body: ChatBody, max_choices: int) -> tuple[Wanted, ...]:
    """The choices a chat asks for. Raises InvalidRequest."""
    if not body.messages:
        raise BadParameter("messages must hold at least one message.", param="messages")
    sampling = _sampling(body, _chat_max_tokens(body), chat_shown(body))
    return _choices(body, (chat_prompt(body.messages),), sampling, max_choices)


def completion_choices(body: CompletionBody, max_choices: int) -> tuple[Wanted, ...]:
    """The choices a completion asks for, prompt by prompt. Raises InvalidRequest."""
    limit = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    shown = completion_shown(body)
    # No generation is without a token: one is generated, and not shown.
    return _choices(body, body.prompt, _sampling(body, limit if shown.answer else 1, shown), max_choices)


def chat_shown(body: ChatBody) -> Shown:
    """What a chat's answer shows beside its text. Raises InvalidRequest."""
    wanted = body.top_logprobs or 0
    if not 0 <= wanted <= MAX_LOGPROBS:
        raise BadParameter(f"top_logprobs must lie between 0 and {MAX_LOGPROBS}.", param="top_logprobs")
    if wanted and not body.logprobs:
        raise BadParameter("top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
    return _shown(body, wanted if body.logprobs else None)


def completion_shown(body: CompletionBody) -> Shown:
    """What a completion's answer shows beside its text. Raises InvalidRequest."""
    shown = _shown(body, body.logprobs)
    return replace(shown, echo=bool(body.echo), answer=not (body.echo and body.max_tokens == 0))


def _shown(body: GenerationBody, logprobs: int | None) -> Shown:
    if body.prompt_logprobs is not None and body.stream:
        raise BadParameter("prompt_logprobs is only allowed when stream is not true.", param="prompt_logprobs")
    return Shown(
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        as_token_ids=bool(body.return_tokens_as_token_ids),
    )


def tokenize_prompt(body: TokenizeBody) -> Prompt:
    """What `/tokenize` is asked about. Raises InvalidRequest."""
    if (body.prompt is None) == (body.messages is None):
        raise BadParameter("Exactly one of prompt and messages is required.", param="prompt")
    # The tokenizer adds what the model wants to a prompt, and nothing to a chat: its template does.
    if body.add_special_tokens not in (None, body.messages is None):
        raise BadParameter(
            "add_special_tokens is not supported with this value.",
            param="add_special_tokens",
            code="unsupported_parameter",
            remedy="Leave it out.",
        )
    return TextPrompt(body.prompt) if body.prompt is not None else chat_prompt(body.messages or [])


def chat_prompt(messages: list[ChatMessage]) -> ChatPrompt:
    """OpenAI's `developer` is what templates call `system`."""
    roles = {"developer": "system"}
    return ChatPrompt(tuple(Message(roles.get(turn.role, turn.role), turn.content) for turn in messages))


def _chat_max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadParameter("max_tokens and max_completion_tokens differ.", param="max_tokens", remedy="Send one.")
    return old if new is None else new


def _sampling(body: GenerationBody, max_tokens: int | None, shown: Shown) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=0 if body.top_k is None or body.top_k == -1 else body.top_k,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=body.logit_bias,
        allowed_token_ids=body.allowed_token_ids,
        bad_words=body.bad_words,
        min_tokens=body.min_tokens or 0,
        seed=body.seed,
        max_tokens=max_tokens,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        logprobs=shown.logprobs,
        prompt_logprobs=_of_prompt(shown),
    )


def _of_prompt(shown: Shown) -> int | None:
    """Alternatives to ask for with each prompt token: an echo shows as many there as in the answer."""
    echoed = shown.logprobs if shown.echo else None
    return max((count for count in (echoed, shown.prompt_logprobs) if count is not None), default=None)


def _choices(
    body: GenerationBody, prompts: tuple[Prompt, ...], sampling: SamplingParams, max_choices: int
) -> tuple[Wanted, ...]:
    n = 1 if body.n is None else body.n
    if not 1 <= n * len(prompts) <= max_choices:
        raise BadParameter(f"n times the number of prompts must lie between 1 and {max_choices}.", param="n")
    if body.stream_options is not None and not body.stream:
        raise BadParameter("stream_options is only allowed when stream is true.", param="stream_options")
    return tuple(
        Wanted(prompt, _for_choice(sampling, choice), index)
        for index, prompt in enumerate(prompts)
        for choice in range(n)
    )


def _for_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Choices of one seeded prompt get consecutive seeds: else all would be the same answer."""
    if choice == 0 or sampling.seed is None:
        return sampling
    seed = (sampling.seed + choice + _SEED_SPAN // 2) % _SEED_SPAN - _SEED_SPAN // 2
    return replace(sampling, seed=seed)
