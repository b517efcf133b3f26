"""Every message survives the wire: strategies come from the dataclasses, so a new field is tested at once."""

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core import errors, fleet, generation, jobs, logprobs, resume, route, sampling, ticket, waterfall
from headrace.core.errors import InvalidRequest
from headrace.rpc.codec import attach, failures
from headrace.rpc.codec import fleet as fleet_codec
from headrace.rpc.codec import generation as generation_codec
from headrace.rpc.codec import jobs as jobs_codec
from headrace.rpc.codec import route as route_codec
from headrace.rpc.codec import sampling as sampling_codec
from headrace.rpc.v1 import fleet_pb2, inference_pb2, worker_pb2

U32 = st.integers(0, 2**32 - 1)
TOKEN = st.integers(0, 2**31 - 1)
SIGNED = st.integers(-(2**31), 2**31 - 1)
TOKENS = st.lists(TOKEN, max_size=8).map(tuple)
SECONDS = st.floats(0.001, 1e6)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: U32,
    str: st.text(max_size=12),
    bytes: st.binary(max_size=20),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def resume_points() -> st.SearchStrategy[resume.ResumePoint]:
    return st.builds(
        lambda seed, prompt, tokens: resume.ResumePoint(seed, prompt, tokens, len(tokens)),
        st.integers(-(2**63), 2**63 - 1),
        st.binary(min_size=8, max_size=8),
        TOKENS,
    )


def token_logprobs() -> st.SearchStrategy[logprobs.TokenLogprob]:
    """As a worker reports them, and as the router tells them."""
    tops = st.lists(st.tuples(TOKEN, st.floats(allow_nan=False), st.binary(max_size=4)), max_size=3)
    return st.builds(
        lambda token, logprob, rank, tops, told, offset: logprobs.TokenLogprob(
            token,
            logprob,
            rank,
            tuple(top[:2] for top in tops),
            tops[0][2] if told and tops else b"",
            tuple(top[2] for top in tops) if told else (),
            offset,
        ),
        TOKEN,
        st.floats(allow_nan=False),
        U32,
        tops,
        st.booleans(),
        U32,
    )


def endings_without_error() -> st.SearchStrategy[jobs.Ending]:
    fine = [outcome for outcome in jobs.Outcome if outcome is not jobs.Outcome.FAILED]
    note = st.none() | of(waterfall.TransferNote)
    return st.builds(jobs.Ending, key=of(jobs.JobKey), outcome=st.sampled_from(fine), note=note)


def attempt_notes() -> st.SearchStrategy[waterfall.AttemptNote]:
    return st.builds(waterfall.noted, U32, of(fleet.Role), of(waterfall.TransferNote))


SPECIAL: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
    resume.ResumePoint: resume_points,
    logprobs.TokenLogprob: token_logprobs,
    jobs.Ending: endings_without_error,
    waterfall.AttemptNote: attempt_notes,
}

FIELDS: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    sampling.SamplingParams: {
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": TOKEN,
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.01, 100),
        "logit_bias": st.lists(st.tuples(TOKEN, st.floats(-100, 100)), max_size=3).map(tuple),
        "allowed_token_ids": st.none() | TOKENS.filter(bool),
        "bad_words": st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
        "bad_word_ids": st.lists(TOKENS.filter(bool), max_size=3).map(tuple),
        "min_tokens": st.just(0) | st.just(1),
        "max_tokens": st.none() | st.integers(1, 2**31 - 1),
        "logprobs": st.none() | st.integers(0, 20),
        "prompt_logprobs": st.none() | st.integers(0, 20),
        "stop": st.lists(st.text(min_size=1, max_size=5), max_size=16).map(tuple),
        "stop_token_ids": TOKENS,
    },
    generation.GenerateRequest: {
        "id": st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128),
        "timeout_s": SECONDS,
        "priority": SIGNED,
    },
    generation.TokenPrompt: {"token_ids": TOKENS},
    # Each side makes it of its own job.
    ticket.Ticket: {"context": st.just(b"")},
    generation.Chunk: {"token_ids": TOKENS},
    generation.PromptEcho: {"token_ids": TOKENS},
    generation.Tokenized: {"token_ids": TOKENS},
    generation.ModelCard: {"created": st.integers(0, 2**62)},
    jobs.JobKey: {"request": st.text(min_size=1, max_size=12)},
    jobs.Job: {
        "tokens": TOKENS.filter(bool),
        "prompt_len": st.just(1),
        "timeout_s": SECONDS,
        "priority": SIGNED,
    },
    waterfall.TransferNote: {"seconds": SECONDS, "exposed_s": SECONDS},
    jobs.TokenEvent: {"token_ids": TOKENS},
    jobs.Activate: {"first_token": TOKEN},
    jobs.Drain: {"grace_s": SECONDS},
}


@functools.cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for a type as it stands in a dataclass of core."""
    if hint in SPECIAL:
        return SPECIAL[hint]()
    if hint in LEAVES:
        return LEAVES[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        known = FIELDS.get(hint, {})
        return st.builds(hint, **known, **{name: of(hints[name]) for name in hints.keys() - known.keys()})
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple:
        return st.one_of(*map(of, parts))
    return st.lists(of(parts[0]), max_size=3).map(tuple) if parts[-1] is Ellipsis else st.tuples(*map(of, parts))


ROUND_TRIPS: list[tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = [
    (generation.GenerateRequest, generation_codec.encode_request, generation_codec.decode_request),
    (generation.Prompt, generation_codec.encode_prompt, generation_codec.decode_prompt),
    (sampling.SamplingParams, sampling_codec.encode_sampling, generation_codec.decode_sampling),
    (generation.Chunk, generation_codec.encode_chunk, generation_codec.decode_chunk),
    (generation.Tokenized, generation_codec.encode_tokenized, generation_codec.decode_tokenized),
    (tuple[generation.ModelCard, ...], generation_codec.encode_models, generation_codec.decode_models),
    (fleet.WorkerInfo, fleet_codec.encode_info, fleet_codec.decode_info),
    (fleet.FleetStatus, fleet_codec.encode_status, fleet_codec.decode_status),
    (route.Explanation, route_codec.encode_explanation, route_codec.decode_explanation),
    (ticket.Ticket, jobs_codec.encode_ticket, jobs_codec.decode_ticket),
    (jobs.Job, jobs_codec.encode_job, jobs_codec.decode_job),
    (jobs.Command, attach.encode_command, attach.decode_command),
    (jobs.Report, attach.encode_report, attach.decode_report),
]


@pytest.mark.parametrize(("hint", "encode", "decode"), ROUND_TRIPS, ids=[str(row[1].__name__) for row in ROUND_TRIPS])
@settings(max_examples=60)
@given(data=st.data())
def test_round_trip(hint: Any, encode: Callable[[Any], Any], decode: Callable[[Any], Any], data: st.DataObject) -> None:
    value = data.draw(of(hint))
    message = encode(value)
    assert decode(type(message).FromString(message.SerializeToString())) == value


@settings(max_examples=60)
@example(kind=errors.InternalError, message="It broke: no reason..", remedy="", retry_after_s=None, param=None)
@given(
    kind=st.sampled_from(errors.ERRORS),
    message=st.text(max_size=50),
    remedy=st.text(max_size=50),
    retry_after_s=st.none() | SECONDS,
    param=st.none() | st.text(min_size=1, max_size=20),
)
def test_error_round_trip(
    kind: type[errors.HeadraceError], message: str, remedy: str, retry_after_s: float | None, param: str | None
) -> None:
    sent = kind(message, remedy=remedy, retry_after_s=retry_after_s, param=param)
    ending = jobs.Ending(jobs.JobKey("r", 1), jobs.Outcome.FAILED, sent)
    error = jobs_codec.decode_ending(jobs_codec.encode_ending(ending)).error
    assert type(error) is kind
    assert (error.message, error.remedy) == (sent.message, remedy)
    assert (error.retry_after_s, error.param) == (retry_after_s, param)
    assert sent.message in {message, message.removesuffix(".")}, "it ends with one full stop"


def test_error_of_a_newer_peer_is_internal() -> None:
    error = failures.decode_error(inference_pb2.Error(code="melted", message="It melted."))
    assert type(error) is errors.InternalError
    assert error.message == "It melted."


@given(text=st.text(st.characters(), max_size=2000))
def test_any_error_text_can_be_sent(text: str) -> None:
    sent = failures.encode_error(errors.InvalidRequest(text)).message
    assert len(sent.encode()) <= failures.MAX_SENTENCE_BYTES


def test_resume_points_send_only_the_tokens_that_they_mean() -> None:
    growing = [1, 2, 3, 400]
    chunk = generation.Chunk(0, 1, "b", (2,), resume.ResumePoint(7, b"01234567", growing, 2))
    decoded = generation_codec.decode_chunk(generation_codec.encode_chunk(chunk))
    assert decoded.resume == resume.ResumePoint(7, b"01234567", (1, 2), 2)


def test_absent_fields_are_defaults() -> None:
    message = inference_pb2.GenerateRequest(id="a", prompt=inference_pb2.Prompt(text="x"))
    assert generation_codec.decode_request(message) == generation.GenerateRequest("a", "", generation.TextPrompt("x"))


def test_zero_is_not_absent() -> None:
    message = inference_pb2.SamplingParams(temperature=0.0, seed=0, logprobs=0, prompt_logprobs=0)
    decoded = sampling_codec.decode_sampling(message)
    assert decoded.greedy
    assert (decoded.seed, decoded.logprobs, decoded.prompt_logprobs) == (0, 0, 0)
    assert sampling_codec.decode_sampling(inference_pb2.SamplingParams()) == sampling.SamplingParams()


def test_refusals_name_the_field_on_the_other_side_too() -> None:
    with pytest.raises(InvalidRequest) as refused:
        sampling_codec.decode_sampling(inference_pb2.SamplingParams(min_p=2))
    assert failures.decode_error(failures.encode_error(refused.value)).param == "min_p"


TEXT = inference_pb2.Prompt(text="x")
MALFORMED: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("lacks its prompt", generation_codec.decode_request, inference_pb2.GenerateRequest(id="a")),
    ("printable", generation_codec.decode_request, inference_pb2.GenerateRequest(id="a b", prompt=TEXT)),
    ("printable", generation_codec.decode_request, inference_pb2.GenerateRequest(id="", prompt=TEXT)),
    ("printable", generation_codec.decode_request, inference_pb2.GenerateRequest(id="a" * 129, prompt=TEXT)),
    ("timeout_s", generation_codec.decode_request, inference_pb2.GenerateRequest(id="a", prompt=TEXT, timeout_s=0)),
    (
        "timeout_s",
        generation_codec.decode_request,
        inference_pb2.GenerateRequest(id="a", prompt=TEXT, timeout_s=math.nan),
    ),
    ("prompt is empty", generation_codec.decode_prompt, inference_pb2.Prompt()),
    (
        "token id",
        generation_codec.decode_prompt,
        inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=[2**31])),
    ),
    ("temperature", sampling_codec.decode_sampling, inference_pb2.SamplingParams(temperature=-1)),
    ("temperature", sampling_codec.decode_sampling, inference_pb2.SamplingParams(temperature=math.nan)),
    ("max_tokens", sampling_codec.decode_sampling, inference_pb2.SamplingParams(max_tokens=0)),
    ("logprobs", sampling_codec.decode_sampling, inference_pb2.SamplingParams(logprobs=21)),
    ("must not be empty", sampling_codec.decode_sampling, inference_pb2.SamplingParams(allowed_token_ids={})),
    ("differ", sampling_codec.decode_logprobs, [inference_pb2.TokenLogprob(top_tokens=[1])]),
    (
        "pieces differ",
        sampling_codec.decode_logprobs,
        [inference_pb2.TokenLogprob(top_tokens=[1, 2], top_logprobs=[0, 0], top_pieces=[b""])],
    ),
    ("resume", generation_codec.decode_chunk, inference_pb2.Chunk(resume=b"?")),
    ("lacks its ref", fleet_codec.decode_info, fleet_pb2.WorkerInfo()),
    ("lacks its source", jobs_codec.decode_ticket, worker_pb2.Granted().ticket),
    ("longer than its tokens", jobs_codec.decode_job, worker_pb2.Job(prompt_len=1)),
    ("JobKind", jobs_codec.decode_job, worker_pb2.Job.FromString(b"\x0a\x03\x0a\x01r\x10\x4d")),
    ("lacks its request", attach.decode_command, worker_pb2.Command(abort=worker_pb2.Abort())),
    ("kind", attach.decode_command, worker_pb2.Command()),
    ("kind", attach.decode_report, worker_pb2.Report()),
    ("lacks its info", attach.decode_report, worker_pb2.Report(welcome=worker_pb2.Welcome())),
    ("if and only if", jobs_codec.decode_ending, worker_pb2.Ending(outcome=worker_pb2.OUTCOME_FAILED)),
    ("Phase", route_codec.decode_explanation, fleet_pb2.Explanation(transitions=[fleet_pb2.Transition()])),
]


@pytest.mark.parametrize(("sentence", "decode", "message"), MALFORMED)
def test_malformed_messages_are_refused(sentence: str, decode: Callable[[Any], Any], message: Any) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        decode(message)


UNSENDABLE: list[tuple[Callable[[Any], Any], Any]] = [
    (generation_codec.encode_prompt, generation.TextPrompt("\ud800")),
    (generation_codec.encode_prompt, generation.ChatPrompt((generation.Message("user", "\udfff"),))),
    (generation_codec.encode_prompt, generation.TokenPrompt((-1,))),
    (generation_codec.encode_prompt, generation.TokenPrompt((2**31,))),
    (sampling_codec.encode_sampling, sampling.SamplingParams(stop=("\ud800",))),
    (route_codec.encode_explain, "\ud800"),
    (attach.encode_command, jobs.Activate(jobs.JobKey("r", 0), -1)),
    (attach.encode_command, jobs.Hello("router", "", -1)),
]


@pytest.mark.parametrize(("encode", "value"), UNSENDABLE)
def test_values_that_the_wire_cannot_hold_are_refused(encode: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(InvalidRequest):
        encode(value)
