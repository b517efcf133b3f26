"""The bodies of OpenAI's API (and vLLM's additions to it) that this gateway reads.

Every field either reaches the generation, or is bookkeeping that changes no answer and says so here, or is
accepted only at the value at which it asks for nothing. Ranges of sampling values are `core.sampling`'s.

Bookkeeping, accepted and without effect: `user`, `safety_identifier`, `metadata`, `prompt_cache_key`,
`prompt_cache_retention` (prefixes are cached for everybody; `cache_salt` is what keeps them apart),
`service_tier`, `parallel_tool_calls` (there are no tools to call).
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from headrace.core.generation import Prompt, TextPrompt, TokenPrompt
from headrace.gateway.strict_body import Body, neutral

_MAX_TOKEN_ID = 2**31
_MAX_DIGITS = 10

Absent = Annotated[Any, neutral(None)]
Empty = Annotated[Any, neutral(None, [], {}, "")]
Off = Annotated[Any, neutral(None, False)]
On = Annotated[Any, neutral(None, True)]
One = Annotated[Any, neutral(None, 1)]


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value or []
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise PydanticCustomError("stop", "must be a string or a list of strings")
    return tuple(strings)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | None) or not all(isinstance(text, str) for text in value or []):
        raise PydanticCustomError("bad_words", "must be a list of strings")
    return tuple(value or ())


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """OpenAI's object from token id, which JSON makes a string, to bias."""
    if not isinstance(value, dict | None):
        raise PydanticCustomError("logit_bias", "must be an object from token ids to numbers")
    return tuple((_id_in_key(key), _bias(bias)) for key, bias in (value or {}).items())


def _id_in_key(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > _MAX_DIGITS or int(key) >= _MAX_TOKEN_ID:
        raise PydanticCustomError("logit_bias", "has a key that is not a token id")
    return int(key)


def _bias(value: Any) -> float:
    if type(value) not in (int, float) or not -100 <= value <= 100:
        raise PydanticCustomError("logit_bias", "has a bias that is not a number from -100 to 100")
    return float(value)


def _content(value: Any) -> str:
    """Text, or text parts joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    return "\n".join(map(_part, value))


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise PydanticCustomError("unsupported_content", "only parts of type text are supported")
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise PydanticCustomError("content", "a text part has the fields type and text, and no others")
    return part["text"]


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt or several, each a string or a list of token ids."""
    several = isinstance(value, list) and bool(value) and not _is_ids(value)
    return tuple(_prompt(item) for item in value) if several else (_prompt(value),)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str):
        return TextPrompt(value)
    if not isinstance(value, list) or not value or not _is_ids(value):
        raise PydanticCustomError("prompt", "must be a string, a list of token ids, or a list of these; none empty")
    return TokenPrompt(_token_ids(value))


def _is_ids(value: list[Any]) -> bool:
    return type(value[0]) is int


def _optional_token_ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else _token_ids(value)


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < _MAX_TOKEN_ID for token in value):
        raise PydanticCustomError("token_ids", "must be a list of token ids: integers of 0 or more")
    return tuple(value)


TokenIds = Annotated[tuple[int, ...], PlainValidator(_token_ids)]
OptionalTokenIds = Annotated[tuple[int, ...] | None, PlainValidator(_optional_token_ids)]


class ChatMessage(Body):
    """One turn. The empty fields are those that an assistant's answer carries when it is sent back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_content)]
    name: Absent = None
    refusal: Empty = None
    annotations: Empty = None
    audio: Empty = None
    function_call: Empty = None
    tool_calls: Empty = None
    reasoning: Empty = None
    reasoning_content: Empty = None


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: Off = None
    include_obfuscation: Off = None


class GenerationBody(Body):
    """What both generation endpoints take."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_stop_strings)] = ()
    stop_token_ids: OptionalTokenIds = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[tuple[tuple[int, float], ...], PlainValidator(_logit_bias)] = ()
    allowed_token_ids: OptionalTokenIds = None
    bad_words: Annotated[tuple[str, ...], PlainValidator(_words)] = ()
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    parallel_tool_calls: bool | None = None

    best_of: One = None
    guided_choice: Empty = None
    guided_grammar: Empty = None
    guided_json: Empty = None
    guided_regex: Empty = None
    kv_transfer_params: Empty = None
    length_penalty: One = None
    logits_processors: Empty = None
    mm_processor_kwargs: Empty = None
    request_id: Absent = None
    response_format: Annotated[Any, neutral(None, {"type": "text"})] = None
    skip_special_tokens: On = None
    spaces_between_special_tokens: On = None
    store: Off = None
    structured_outputs: Empty = None
    truncate_prompt_tokens: Absent = None
    use_beam_search: Off = None
    vllm_xargs: Empty = None


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    add_generation_prompt: On = None
    add_special_tokens: Off = None
    audio: Absent = None
    chat_template: Absent = None
    chat_template_kwargs: Empty = None
    continue_final_message: Off = None
    documents: Empty = None
    echo: Off = None
    function_call: Annotated[Any, neutral(None, "none", "auto")] = None
    functions: Empty = None
    modalities: Annotated[Any, neutral(None, ["text"])] = None
    moderation: Empty = None
    prediction: Absent = None
    prompt_cache_options: Empty = None
    reasoning_effort: Absent = None
    tool_choice: Annotated[Any, neutral(None, "none", "auto")] = None
    tools: Empty = None
    verbosity: Annotated[Any, neutral(None, "medium")] = None
    web_search_options: Absent = None


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)]
    echo: bool | None = None
    logprobs: int | None = None

    add_special_tokens: On = None
    prompt_embeds: Absent = None
    suffix: Empty = None


class TokenizeBody(Body):
    """`POST /tokenize`, vLLM's: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: On = None
    chat_template: Absent = None
    chat_template_kwargs: Empty = None
    continue_final_message: Off = None
    mm_processor_kwargs: Empty = None
    return_token_strs: Off = None
    tools: Empty = None


class DetokenizeBody(Body):
    """`POST /detokenize`, vLLM's."""

    model: str | None = None
    tokens: TokenIds


class DrainBody(Body):
    """`POST /v1/fleet/{worker}/drain`. grace_s: what its jobs get; 0: what the worker was configured with."""

    grace_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0.0
