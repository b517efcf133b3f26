"""Codec of the `Inference` service's messages."""

import math

from headrace.core.errors import InvalidRequest
from headrace.core.generation import (
    DEFAULT_TIMEOUT_S,
    ChatPrompt,
    Chunk,
    FinishReason,
    GenerateRequest,
    Message,
    ModelCard,
    Prompt,
    PromptEcho,
    TextPrompt,
    Tokenized,
    TokenPrompt,
    Usage,
)
from headrace.core.resume import ResumePoint
from headrace.rpc.codec.sampling import decode_logprobs, decode_sampling, encode_logprobs, encode_sampling
from headrace.rpc.codec.values import EnumCodec, part, refusing, token_ids
from headrace.rpc.v1 import inference_pb2 as pb

MAX_ID_CHARS = 128

_FINISH = EnumCodec(FinishReason, pb.FinishReason, "FINISH_REASON_")


@refusing("The request")
def encode_request(request: GenerateRequest) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        id=request.id,
        model=request.model,
        prompt=encode_prompt(request.prompt),
        sampling=encode_sampling(request.sampling),
        timeout_s=request.timeout_s,
        cache_salt=request.cache_salt,
        resume=request.resume,
        priority=request.priority,
        echo=request.echo,
    )


def decode_request(message: pb.GenerateRequest) -> GenerateRequest:
    """Raises InvalidRequest also for an id that cannot stand in metadata and a timeout that is not above 0."""
    timeout_s = message.timeout_s if message.HasField("timeout_s") else DEFAULT_TIMEOUT_S
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise InvalidRequest("timeout_s must be a finite number of seconds above 0.")
    part(message, "prompt")
    return GenerateRequest(
        id=_request_id(message.id),
        model=message.model,
        prompt=decode_prompt(message.prompt),
        sampling=decode_sampling(message.sampling),
        timeout_s=timeout_s,
        cache_salt=message.cache_salt,
        resume=message.resume,
        priority=message.priority,
        echo=message.echo,
    )


def _request_id(text: str) -> str:
    if not 0 < len(text) <= MAX_ID_CHARS or not all("!" <= char <= "~" for char in text):
        raise InvalidRequest(f"id must be 1 to {MAX_ID_CHARS} printable ASCII characters without spaces.")
    return text


@refusing("The prompt")
def encode_prompt(prompt: Prompt) -> pb.Prompt:
    match prompt:
        case ChatPrompt(messages):
            turns = [pb.Message(role=turn.role, content=turn.content) for turn in messages]
            return pb.Prompt(chat=pb.ChatPrompt(messages=turns))
        case TextPrompt(text):
            return pb.Prompt(text=text)
        case TokenPrompt(ids):
            return pb.Prompt(tokens=pb.TokenPrompt(token_ids=token_ids(ids)))


def decode_prompt(message: pb.Prompt) -> Prompt:
    match message.WhichOneof("kind"):
        case "chat":
            return ChatPrompt(tuple(Message(turn.role, turn.content) for turn in message.chat.messages))
        case "text":
            return TextPrompt(message.text)
        case "tokens":
            return TokenPrompt(token_ids(message.tokens.token_ids))
        case _:
            raise InvalidRequest("The prompt is empty.", remedy="Set one of chat, text and tokens.")


@refusing("The chunk")
def encode_chunk(chunk: Chunk) -> pb.Chunk:
    return pb.Chunk(
        choice=chunk.choice,
        position=chunk.position,
        text=chunk.text,
        token_ids=token_ids(chunk.token_ids),
        resume=chunk.resume.encode(),
        finish_reason=_FINISH.encode(chunk.finish_reason) if chunk.finish_reason else pb.FINISH_REASON_UNSPECIFIED,
        usage=_encode_usage(chunk.usage) if chunk.usage else None,
        logprobs=encode_logprobs(chunk.logprobs),
        prompt_logprobs=encode_logprobs(chunk.prompt_logprobs),
        prompt=_encode_echo(chunk.prompt) if chunk.prompt else None,
    )


def decode_chunk(message: pb.Chunk) -> Chunk:
    return Chunk(
        choice=message.choice,
        position=message.position,
        text=message.text,
        token_ids=token_ids(message.token_ids),
        resume=ResumePoint.decode(message.resume),
        finish_reason=_FINISH.decode(message.finish_reason) if message.finish_reason else None,
        usage=_decode_usage(message.usage) if message.HasField("usage") else None,
        logprobs=decode_logprobs(message.logprobs),
        prompt_logprobs=decode_logprobs(message.prompt_logprobs),
        prompt=_decode_echo(message.prompt) if message.HasField("prompt") else None,
    )


def _encode_echo(prompt: PromptEcho) -> pb.PromptEcho:
    return pb.PromptEcho(text=prompt.text, token_ids=token_ids(prompt.token_ids), pieces=prompt.pieces)


def _decode_echo(message: pb.PromptEcho) -> PromptEcho:
    return PromptEcho(message.text, token_ids(message.token_ids), tuple(message.pieces))


def _encode_usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _decode_usage(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


@refusing("The request")
def encode_tokenize(model: str, prompt: Prompt) -> pb.TokenizeRequest:
    return pb.TokenizeRequest(model=model, prompt=encode_prompt(prompt))


@refusing("The request")
def encode_detokenize(model: str, ids: tuple[int, ...]) -> pb.DetokenizeRequest:
    return pb.DetokenizeRequest(model=model, token_ids=token_ids(ids))


@refusing("The tokenized prompt")
def encode_tokenized(tokenized: Tokenized) -> pb.Tokenized:
    return pb.Tokenized(token_ids=token_ids(tokenized.token_ids), max_model_len=tokenized.max_model_len)


def decode_tokenized(message: pb.Tokenized) -> Tokenized:
    return Tokenized(token_ids(message.token_ids), message.max_model_len)


@refusing("The list of models")
def encode_models(cards: tuple[ModelCard, ...]) -> pb.ModelList:
    return pb.ModelList(
        models=[pb.ModelCard(id=card.id, max_model_len=card.max_model_len, created=card.created) for card in cards]
    )


def decode_models(message: pb.ModelList) -> tuple[ModelCard, ...]:
    return tuple(ModelCard(card.id, card.max_model_len, card.created) for card in message.models)
