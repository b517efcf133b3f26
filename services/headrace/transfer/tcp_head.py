"""The head in front of everything that is said on a TCP connection between links, and what may be said.

Layout, little-endian: protocol u8, verb u8, transfer 16s, unit u16, bytes u64, then the xxh3 of all that. A head that
was damaged on its way, or that another protocol wrote, is refused: what it names would wait for ever.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import xxhash

from headrace.transfer.link import FrameId

# Raised with every change that an older peer could misread.
_PROTOCOL = 2
_HEAD = struct.Struct("<BB16sHQ")
_CHECK_BYTES = 8
HEAD_BYTES = _HEAD.size + _CHECK_BYTES


class Verb(IntEnum):
    """HELLO: the first head; its bytes are the nonce of the link that is called, its transfer the connection's name.

    Then, of a frame: OFFER says how large it is, PULL asks for it, DATA comes before its bytes, TAKEN says that they
    arrived. REFUSED: it is larger than its place. RETRACTED: it will not come.
    """

    OFFER = 1
    PULL = 2
    DATA = 3
    TAKEN = 4
    REFUSED = 5
    RETRACTED = 6
    HELLO = 7


_VERBS = {int(verb): verb for verb in Verb}


class ProtocolBreach(Exception):
    """The peer broke the protocol or the connection broke; its text is the reason."""


class Head(NamedTuple):
    """nbytes: of the payload, offered or following; for HELLO the nonce."""

    verb: Verb
    frame: FrameId
    nbytes: int = 0


def pack_head(head: Head) -> bytes:
    packed = _HEAD.pack(_PROTOCOL, head.verb, *head.frame, head.nbytes)
    return packed + xxhash.xxh3_64_digest(packed)


def unpack_head(packed: bytes) -> Head:
    """Of HEAD_BYTES bytes. Raises ProtocolBreach."""
    protocol, verb, transfer, unit, nbytes = _HEAD.unpack_from(packed)
    if protocol != _PROTOCOL:
        raise ProtocolBreach(f"the peer speaks protocol {protocol}, not {_PROTOCOL}")
    if xxhash.xxh3_64_digest(packed[: _HEAD.size]) != packed[_HEAD.size :]:
        raise ProtocolBreach("what the peer said was damaged on its way")
    try:
        return Head(_VERBS[verb], FrameId(transfer, unit), nbytes)
    except KeyError as error:
        raise ProtocolBreach(f"the peer said {verb}, which means nothing") from error
