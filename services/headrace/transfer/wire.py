"""Frames: the 128-byte header in front of every payload, the closing End, and the named reasons to refuse one.

Owns the bytes on the wire. All functions are pure; the link and the pages are somebody else's.

Layout, little-endian: magic 4s, version u8, kind u8, 2 zero bytes, proof 16s, transfer 16s, attempt u32, source 8s,
target 8s, model 16s, context 16s, unit u32, first block u32, block count u32, payload bytes u64, payload checksum 16s.
"""

import struct
from dataclasses import dataclass
from enum import Enum

import xxhash

from headrace.core.fleet import WorkerRef
from headrace.core.ticket import Ticket
from headrace.transfer.link import END_UNIT
from headrace.transfer.plan import Unit

HEADER_BYTES = 128
_MAGIC = b"HRKV"
_VERSION = 2
_PRELUDE = struct.Struct("<4sBB2x16s")
_BODY = struct.Struct("<16sI8s8s16s16sIIIQ16s")
_END = struct.Struct("<BI16s")
_CHECKSUM_BYTES = 16
END_FRAME_BYTES = HEADER_BYTES + _END.size


class Kind(Enum):
    UNIT = 1
    END = 2


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
    return xxhash.xxh3_128(digest + checksum).digest()


def encode_unit(ticket: Ticket, unit: Unit, frame: memoryview) -> bytes:
    """Write the header in front of the payload that already stands in `frame[HEADER_BYTES:]`.
    Returns the payload's checksum."""
    checksum = xxhash.xxh3_128(frame[HEADER_BYTES:]).digest()
    body = _body(ticket, unit, len(frame) - HEADER_BYTES, checksum)
    frame[:HEADER_BYTES] = _header(ticket, Kind.UNIT, body)
    return checksum


def encode_end(ticket: Ticket, end: End) -> bytes:
    """The closing frame, END_FRAME_BYTES long."""
    payload = _END.pack(end.status.value, end.units_sent, end.digest.ljust(16, b"\0"))
    body = _body(ticket, _END_PLACE, len(payload), xxhash.xxh3_128(payload).digest())
    return _header(ticket, Kind.END, body) + payload


def verify_unit(ticket: Ticket, unit: Unit, frame: memoryview) -> bytes | Refusal:
    """The checksum of a received frame (header and payload, exactly this long) if all of it is as the ticket says."""
    return _verify(ticket, Kind.UNIT, unit, frame)


def verify_end(ticket: Ticket, frame: memoryview) -> End | Refusal:
    verdict = _verify(ticket, Kind.END, _END_PLACE, frame)
    if isinstance(verdict, Refusal):
        return verdict
    status, units_sent, digest = _END.unpack_from(frame, HEADER_BYTES)
    if status not in {known.value for known in EndStatus}:
        return Refusal.KIND
    return End(EndStatus(status), units_sent, digest if units_sent else b"")


_END_PLACE = Unit(END_UNIT, 0, 0)


def _verify(ticket: Ticket, kind: Kind, unit: Unit, frame: memoryview) -> bytes | Refusal:
    magic, version, frame_kind, proof = _PRELUDE.unpack_from(frame)
    if magic != _MAGIC:
        return Refusal.MAGIC
    if version != _VERSION:
        return Refusal.VERSION
    if frame_kind != kind.value:
        return Refusal.KIND
    body = bytes(frame[_PRELUDE.size : _PRELUDE.size + _BODY.size])
    if proof != _proof(ticket.secret, kind, body):
        return Refusal.SECRET
    claimed = body[-_CHECKSUM_BYTES:]
    wanted = _body(ticket, unit, len(frame) - HEADER_BYTES, claimed)
    if body != wanted:
        return _differing(body, wanted)
    checksum = xxhash.xxh3_128(frame[HEADER_BYTES:]).digest()
    return checksum if checksum == claimed else Refusal.CHECKSUM


def _differing(body: bytes, wanted: bytes) -> Refusal:
    """The first field in which they do."""
    fields = zip(_BODY_FIELDS, _BODY.unpack(body), _BODY.unpack(wanted), strict=True)
    return next(name for name, got, want in fields if got != want)


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


def _body(ticket: Ticket, unit: Unit, payload_bytes: int, checksum: bytes) -> bytes:
    return _BODY.pack(
        ticket.transfer,
        ticket.attempt,
        _incarnation(ticket.source),
        _incarnation(ticket.target),
        xxhash.xxh3_128(ticket.model_digest).digest(),
        ticket.context,
        unit.index,
        unit.first_block,
        unit.block_count,
        payload_bytes,
        checksum,
    )


def _header(ticket: Ticket, kind: Kind, body: bytes) -> bytes:
    prelude = _PRELUDE.pack(_MAGIC, _VERSION, kind.value, _proof(ticket.secret, kind, body))
    return (prelude + body).ljust(HEADER_BYTES, b"\0")


def _proof(secret: bytes, kind: Kind, body: bytes) -> bytes:
    """Shows that the sender holds the ticket, and binds the header and (through its checksum) the payload to it.

    xxh3 is fast and not cryptographic: this keeps out lost, stale and misdirected frames and senders that were never
    told, not an attacker who can read or rewrite traffic. Against those the network must be closed or encrypted.
    """
    return xxhash.xxh3_128(b"%b%c%b" % (secret, kind.value, body)).digest()


def _incarnation(ref: WorkerRef) -> bytes:
    return xxhash.xxh3_64(f"{ref.worker}\0{ref.incarnation}".encode()).digest()
