"""Codec of waterfalls: the parts of a request's time and the notes on its transfers."""

import math

from headrace.core.errors import InvalidRequest
from headrace.core.waterfall import AttemptNote, Part, Stage, TransferNote, noted
from headrace.rpc.codec.fleet import ROLE, decode_ref, encode_ref
from headrace.rpc.codec.values import EnumCodec, part
from headrace.rpc.v1 import fleet_pb2 as pb

_STAGE = EnumCodec(Stage, pb.Stage, "STAGE_")


def encode_note(note: TransferNote) -> pb.TransferNote:
    return pb.TransferNote(
        worker=encode_ref(note.worker),
        payload_bytes=note.payload_bytes,
        messages=note.messages,
        seconds=note.seconds,
        exposed_s=note.exposed_s,
    )


def decode_note(message: pb.TransferNote) -> TransferNote:
    """Raises InvalidRequest also for a time that is no number."""
    part(message, "worker")
    if not (math.isfinite(message.seconds) and math.isfinite(message.exposed_s)):
        raise InvalidRequest("A transfer's times must be finite numbers of seconds.")
    return TransferNote(
        worker=decode_ref(message.worker),
        payload_bytes=message.payload_bytes,
        messages=message.messages,
        seconds=message.seconds,
        exposed_s=message.exposed_s,
    )


def encode_attempt_note(note: AttemptNote) -> pb.AttemptNote:
    told = TransferNote(note.worker, note.payload_bytes, note.messages, note.seconds, note.exposed_s)
    return pb.AttemptNote(attempt=note.attempt, role=ROLE.encode(note.role), note=encode_note(told))


def decode_attempt_note(message: pb.AttemptNote) -> AttemptNote:
    part(message, "note")
    return noted(message.attempt, ROLE.decode(message.role), decode_note(message.note))


def encode_part(told: Part) -> pb.Part:
    return pb.Part(stage=_STAGE.encode(told.stage), attempt=told.attempt, seconds=told.seconds)


def decode_part(message: pb.Part) -> Part:
    return Part(_STAGE.decode(message.stage), message.attempt, message.seconds)
