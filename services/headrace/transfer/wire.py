"""Frames: the 128-byte header in front of every payload, the closing End, and the named reasons to refuse one.

Owns the bytes on the wire. All functions are pure; the link and the pages are somebody else's.

Layout, little-endian: magic 4s, version u8, kind u8, 2 zero bytes, proof 16s, transfer 16s, attempt u32, source 8s,
target 8s, model 16s, context 16s, unit u32, first block u32, block count u32, payload bytes u64, payload checksum 16s.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Self

import xxhash

from headrace.core.fleet import WorkerRef
from headrace.core.ticket import Ticket
from headrace.transfer.link import END_UNIT
from headrace.transfer.plan import Unit

HEADER_BYTES = 128
_MAGIC = b"HRKV"
_VERSION = 2
_PRELUDE = struct.Struct("<4sBB2x16s")
_NAMES = struct.Struct("<16sI8s8s16s16s")
_PLACE = struct.Struct("<IIIQ16s")
_BODY = struct.Struct("<16sI8s8s16s16sIIIQ16s")
_END = struct.Struct("<BI16s")
_CHECKSUM_BYTES = 16
END_FRAME_BYTES = HEADER_BYTES + _END.size
# Kinds of frames.
_UNIT, _END_KIND = 1, 2


class Refusal(Enum):
    """Why a frame was not used; the values label a metric."""

    MAGIC = "magic"
    VERSION = "version"
    KIND = "kind"
    SECRET = "secret"
    TRANSFER = "transfer"
    ATTEMPT = "attempt"
    SOURCE = "source"
    TARGET = "target"
    MODEL = "model"
    CONTEXT = "context"
    UNIT = "unit"
    BLOCKS = "blocks"
    LENGTH = "length"
    CHECKSUM = "checksum"
    DIGEST = "digest"


class EndStatus(Enum):
    COMPLETE = 0
    CANCELLED = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class End:
    """The sender's last word. digest: `fold` over the checksums of the units sent, in order."""

    status: EndStatus
    units_sent: int
    digest: bytes


def fold(digest: bytes, checksum: bytes) -> bytes:
    """The running digest of a transfer after one more unit; it starts at b""."""
    return xxhash.xxh3_128_digest(digest + checksum)


@dataclass(frozen=True, slots=True)
class Seal:
    """What all headers of one transfer have in common, packed once: a unit is framed while others wait."""

    names: bytes
    secret: bytes

    @classmethod
    def of(cls, ticket: Ticket) -> Self:
        names = _NAMES.pack(
            ticket.transfer,
            ticket.attempt,
            _incarnation(ticket.source),
            _incarnation(ticket.target),
            xxhash.xxh3_128(ticket.model_digest).digest(),
            ticket.context,
        )
        return cls(names, ticket.secret)


def encode_unit(seal: Seal, unit: Unit, frame: memoryview) -> bytes:
    """Write the header in front of the payload that already stands in `frame[HEADER_BYTES:]`.
    Returns the payload's checksum."""
    checksum = xxhash.xxh3_128_digest(frame[HEADER_BYTES:])
    frame[:HEADER_BYTES] = _header(seal, _UNIT, unit, len(frame) - HEADER_BYTES, checksum)
    return checksum


def encode_end(seal: Seal, end: End) -> bytes:
    """The closing frame, END_FRAME_BYTES long."""
    payload = _END.pack(end.status.value, end.units_sent, end.digest.ljust(16, b"\0"))
    return _header(seal, _END_KIND, _END_PLACE, len(payload), xxhash.xxh3_128_digest(payload)) + payload


def verify_unit(seal: Seal, unit: Unit, frame: memoryview) -> bytes | Refusal:
    """The checksum of a received frame (header and payload, exactly this long) if all of it is as the ticket says."""
    return _verify(seal, _UNIT, unit, frame)


def verify_end(seal: Seal, frame: memoryview) -> End | Refusal:
    verdict = _verify(seal, _END_KIND, _END_PLACE, frame)
    if isinstance(verdict, Refusal):
        return verdict
    status, units_sent, digest = _END.unpack_from(frame, HEADER_BYTES)
    if status not in {known.value for known in EndStatus}:
        return Refusal.KIND
    return End(EndStatus(status), units_sent, digest if units_sent else b"")


_END_PLACE = Unit(END_UNIT, 0, 0)


def _verify(seal: Seal, kind: int, unit: Unit, frame: memoryview) -> bytes | Refusal:
    header = bytes(frame[:HEADER_BYTES])
    claimed = header[-_CHECKSUM_BYTES:]
    if header != _header(seal, kind, unit, len(frame) - HEADER_BYTES, claimed):
        return _differing(seal, kind, unit, header, len(frame) - HEADER_BYTES)
    checksum = xxhash.xxh3_128_digest(frame[HEADER_BYTES:])
    return checksum if checksum == claimed else Refusal.CHECKSUM


def _differing(seal: Seal, kind: int, unit: Unit, header: bytes, payload_bytes: int) -> Refusal:
    """The first field of a header that is not as it should be. Bytes that are zero in this version are no field."""
    magic, version, frame_kind, proof = _PRELUDE.unpack_from(header)
    if magic != _MAGIC:
        return Refusal.MAGIC
    if version != _VERSION:
        return Refusal.VERSION
    if frame_kind != kind:
        return Refusal.KIND
    body = header[_PRELUDE.size :]
    if proof != _proof(seal.secret, kind, body):
        return Refusal.SECRET
    wanted = seal.names + _PLACE.pack(
        unit.index, unit.first_block, unit.block_count, payload_bytes, body[-_CHECKSUM_BYTES:]
    )
    fields = zip(_BODY_FIELDS, _BODY.unpack(body), _BODY.unpack(wanted), strict=True)
    return next((name for name, got, want in fields if got != want), Refusal.VERSION)


_BODY_FIELDS = (
    Refusal.TRANSFER,
    Refusal.ATTEMPT,
    Refusal.SOURCE,
    Refusal.TARGET,
    Refusal.MODEL,
    Refusal.CONTEXT,
    Refusal.UNIT,
    Refusal.BLOCKS,
    Refusal.BLOCKS,
    Refusal.LENGTH,
    Refusal.CHECKSUM,
)


def _header(seal: Seal, kind: int, unit: Unit, payload_bytes: int, checksum: bytes) -> bytes:
    body = seal.names + _PLACE.pack(unit.index, unit.first_block, unit.block_count, payload_bytes, checksum)
    return _PRELUDE.pack(_MAGIC, _VERSION, kind, _proof(seal.secret, kind, body)) + body


def _proof(secret: bytes, kind: int, body: bytes) -> bytes:
    """Shows that the sender holds the ticket, and binds the header and (through its checksum) the payload to it.

    xxh3 is fast and not cryptographic: this keeps out lost, stale and misdirected frames and senders that were never
    told, not an attacker who can read or rewrite traffic. Against those the network must be closed or encrypted.
    """
    return xxhash.xxh3_128_digest(b"%b%c%b" % (secret, kind, body))


def _incarnation(ref: WorkerRef) -> bytes:
    return xxhash.xxh3_64(f"{ref.worker}\0{ref.incarnation}".encode()).digest()
