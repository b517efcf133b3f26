"""Codec of tickets and jobs: the parts that commands and reports are made of."""

import math

from headrace.core.errors import InvalidRequest
from headrace.core.jobs import Ending, Job, JobKey, JobKind, Outcome, TokenEvent
from headrace.core.ticket import Ticket
from headrace.rpc.codec.failures import decode_error, encode_error
from headrace.rpc.codec.fleet import decode_layout, decode_ref, encode_layout, encode_ref
from headrace.rpc.codec.notes import decode_note, encode_note
from headrace.rpc.codec.sampling import decode_logprobs, decode_sampling, encode_logprobs, encode_sampling
from headrace.rpc.codec.values import EnumCodec, part, refusing, token_ids
from headrace.rpc.v1 import ticket_pb2, worker_pb2

_KIND = EnumCodec(JobKind, worker_pb2.JobKind, "JOB_KIND_")
_OUTCOME = EnumCodec(Outcome, worker_pb2.Outcome, "OUTCOME_")


def encode_key(key: JobKey) -> worker_pb2.JobKey:
    return worker_pb2.JobKey(request=key.request, attempt=key.attempt)


def decode_key(message: worker_pb2.JobKey) -> JobKey:
    if not message.request:
        raise InvalidRequest("A job's key lacks its request.")
    return JobKey(message.request, message.attempt)


@refusing("The ticket")
def encode_ticket(ticket: Ticket) -> ticket_pb2.Ticket:
    return ticket_pb2.Ticket(
        transfer=ticket.transfer,
        secret=ticket.secret,
        job=ticket.job,
        attempt=ticket.attempt,
        source=encode_ref(ticket.source),
        target=encode_ref(ticket.target),
        model_digest=ticket.model_digest,
        layout=encode_layout(ticket.layout),
        first_block=ticket.first_block,
        block_count=ticket.block_count,
        unit_blocks=ticket.unit_blocks,
        link=ticket.link,
        address=ticket.address,
        wire_tokens=ticket.wire_tokens,
    )


def decode_ticket(message: ticket_pb2.Ticket) -> Ticket:
    for field in ("source", "target", "layout"):
        part(message, field)
    return Ticket(
        transfer=message.transfer,
        secret=message.secret,
        job=message.job,
        attempt=message.attempt,
        source=decode_ref(message.source),
        target=decode_ref(message.target),
        model_digest=message.model_digest,
        layout=decode_layout(message.layout),
        first_block=message.first_block,
        block_count=message.block_count,
        unit_blocks=message.unit_blocks,
        link=message.link,
        address=message.address,
        wire_tokens=message.wire_tokens,
    )


@refusing("The job")
def encode_job(job: Job) -> worker_pb2.Job:
    return worker_pb2.Job(
        key=encode_key(job.key),
        kind=_KIND.encode(job.kind),
        tokens=token_ids(job.tokens),
        prompt_len=job.prompt_len,
        sampling=encode_sampling(job.sampling),
        root=job.root,
        hashes=job.hashes,
        timeout_s=job.timeout_s,
        choice=job.choice,
        ticket=encode_ticket(job.ticket) if job.ticket else None,
        peer=encode_ref(job.peer) if job.peer else None,
        priority=job.priority,
        peer_block_tokens=job.peer_block_tokens,
    )


def decode_job(message: worker_pb2.Job) -> Job:
    """Raises InvalidRequest also for a prompt longer than the tokens and a timeout that is no number."""
    if message.prompt_len > len(message.tokens):
        raise InvalidRequest("A job's prompt is longer than its tokens.")
    if not math.isfinite(message.timeout_s):
        raise InvalidRequest("A job's timeout must be a finite number of seconds.")
    return Job(
        key=decode_key(message.key),
        kind=_KIND.decode(message.kind),
        tokens=token_ids(message.tokens),
        prompt_len=message.prompt_len,
        sampling=decode_sampling(message.sampling),
        root=message.root,
        hashes=tuple(message.hashes),
        timeout_s=message.timeout_s,
        choice=message.choice,
        ticket=decode_ticket(message.ticket) if message.HasField("ticket") else None,
        peer=decode_ref(message.peer) if message.HasField("peer") else None,
        priority=message.priority,
        peer_block_tokens=message.peer_block_tokens,
    )


def encode_token_event(event: TokenEvent) -> worker_pb2.TokenEvent:
    return worker_pb2.TokenEvent(
        key=encode_key(event.key),
        choice=event.choice,
        position=event.position,
        token_ids=token_ids(event.token_ids),
        cached_tokens=event.cached_tokens,
        logprobs=encode_logprobs(event.logprobs),
        prompt_logprobs=encode_logprobs(event.prompt_logprobs),
    )


def decode_token_event(message: worker_pb2.TokenEvent) -> TokenEvent:
    return TokenEvent(
        key=decode_key(message.key),
        choice=message.choice,
        position=message.position,
        token_ids=token_ids(message.token_ids),
        cached_tokens=message.cached_tokens,
        logprobs=decode_logprobs(message.logprobs),
        prompt_logprobs=decode_logprobs(message.prompt_logprobs),
    )


def encode_ending(ending: Ending) -> worker_pb2.Ending:
    return worker_pb2.Ending(
        key=encode_key(ending.key),
        outcome=_OUTCOME.encode(ending.outcome),
        error=encode_error(ending.error) if ending.error else None,
        note=encode_note(ending.note) if ending.note else None,
    )


def decode_ending(message: worker_pb2.Ending) -> Ending:
    outcome = _OUTCOME.decode(message.outcome)
    if message.HasField("error") != (outcome is Outcome.FAILED):
        raise InvalidRequest("A job's ending has an error if and only if it failed.")
    return Ending(
        decode_key(message.key),
        outcome,
        decode_error(message.error) if message.HasField("error") else None,
        decode_note(message.note) if message.HasField("note") else None,
    )
