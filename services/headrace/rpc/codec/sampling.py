"""Codec of sampling parameters and of what they ask to report."""

from collections.abc import Iterable

from headrace.core.errors import InvalidRequest
from headrace.core.logprobs import TokenLogprob
from headrace.core.sampling import SamplingParams
from headrace.rpc.codec.values import refusing, token_ids
from headrace.rpc.v1 import inference_pb2 as pb


@refusing("The sampling parameters")
def encode_sampling(sampling: SamplingParams) -> pb.SamplingParams:
    allowed = sampling.allowed_token_ids
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=[pb.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias],
        allowed_token_ids=None if allowed is None else pb.TokenIds(token_ids=token_ids(allowed)),
        bad_words=sampling.bad_words,
        bad_word_ids=[pb.TokenIds(token_ids=token_ids(word)) for word in sampling.bad_word_ids],
        min_tokens=sampling.min_tokens,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )


def decode_sampling(message: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        logit_bias=tuple((each.token, each.bias) for each in message.logit_bias),
        allowed_token_ids=_allowed(message),
        bad_words=tuple(message.bad_words),
        bad_word_ids=tuple(token_ids(word.token_ids) for word in message.bad_word_ids),
        min_tokens=message.min_tokens,
        seed=message.seed if message.HasField("seed") else None,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        stop=tuple(message.stop),
        stop_token_ids=token_ids(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_str_in_output=message.include_stop_str_in_output,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def encode_logprobs(logprobs: Iterable[TokenLogprob]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token=each.token,
            logprob=each.logprob,
            rank=each.rank,
            top_tokens=[token for token, _ in each.top],
            top_logprobs=[logprob for _, logprob in each.top],
            piece=each.piece,
            top_pieces=each.top_pieces,
            offset=each.offset,
        )
        for each in logprobs
    ]


def decode_logprobs(messages: Iterable[pb.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(map(_logprob, messages))


def _logprob(message: pb.TokenLogprob) -> TokenLogprob:
    if len(message.top_tokens) != len(message.top_logprobs):
        raise InvalidRequest("A token's likeliest alternatives and their logprobs differ in number.")
    if message.top_pieces and len(message.top_pieces) != len(message.top_tokens):
        raise InvalidRequest("A token's likeliest alternatives and their pieces differ in number.")
    top = tuple(zip(message.top_tokens, message.top_logprobs, strict=True))
    return TokenLogprob(
        message.token, message.logprob, message.rank, top, message.piece, tuple(message.top_pieces), message.offset
    )


def _allowed(message: pb.SamplingParams) -> tuple[int, ...] | None:
    return token_ids(message.allowed_token_ids.token_ids) if message.HasField("allowed_token_ids") else None
