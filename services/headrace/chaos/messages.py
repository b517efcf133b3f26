"""What a chaos harness and a worker under it say to each other, and its bytes on their unix socket.

Owns the words and their framing: a length of 4 bytes, big-endian, and as many bytes of JSON. It knows no sockets.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

# The longest that anything stays held: a harness that died frees its workers.
HOLD_BOUND_S = 10.0
LENGTH = struct.Struct(">I")


class Phase(Enum):
    """Where a job of a worker may be held.

    before_grant: the decode worker is about to reserve its pages. after_grant: the prefill worker has got the job with
    its ticket. mid_chunk: it computed a part of the prompt. before_commit: all units left and the End is withheld.
    after_commit: the decode worker has all pages verified and the first token. mid_decode: it generated some tokens.
    """

    BEFORE_GRANT = "before_grant"
    AFTER_GRANT = "after_grant"
    MID_CHUNK = "mid_chunk"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    MID_DECODE = "mid_decode"


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the first job that reaches `phase` and whose request id begins with `request_prefix`, once.

    at: computed tokens for mid_chunk, generated tokens of the request for mid_decode: held before the next step once
    there are so many; a prompt that fits into one step is never held mid_chunk. A hold is a frozen engine step, but
    for before_commit, which withholds one frame and nothing else. It lasts until it is released, and at most
    HOLD_BOUND_S; an End that is withheld is given up by its sender before that, like any that a peer does not take.
    """

    phase: Phase
    request_prefix: str
    at: int = 0
    word: Literal["hold"] = "hold"


class Damage(Enum):
    """What becomes of a frame that a link sends.

    duplicated: it is sent again once the peer took it. delayed: it leaves late. reordered: the next one overtakes it.
    truncated: its last bytes are missing. corrupted: a bit of its payload is wrong; corrupted_header: of its header.
    lost: it never arrives, and its sender hears nothing. swallowed: it never arrives, and its sender hears that it
    did, which no link may say.
    """

    DUPLICATED = "duplicated"
    DELAYED = "delayed"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    CORRUPTED = "corrupted"
    CORRUPTED_HEADER = "corrupted_header"
    LOST = "lost"
    SWALLOWED = "swallowed"


_OF_BYTES = frozenset({Damage.TRUNCATED, Damage.CORRUPTED, Damage.CORRUPTED_HEADER})


class FrameKind(Enum):
    """meet: a frame of no bytes, which only shows that the way to a peer is open."""

    UNIT = "unit"
    END = "end"
    MEET = "meet"


@dataclass(frozen=True, slots=True)
class WireFault:
    """Do `kind` once, to the frame number `nth` (from 0) that the worker sends from now on and that fits.

    seconds: for delayed; for reordered how long the next frame is waited for. request_prefix: of the request whose
    pages the frame carries; "" means any, and is the only one that fits meet. Raises ValueError for what cannot be
    done to a frame without bytes.
    """

    kind: Damage
    frame: FrameKind = FrameKind.UNIT
    nth: int = 0
    seconds: float = 0.5
    request_prefix: str = ""
    word: Literal["wire_fault"] = "wire_fault"

    def __post_init__(self) -> None:
        if self.frame is FrameKind.MEET and self.kind in _OF_BYTES:
            raise ValueError(f"a frame of no bytes cannot be {self.kind.value}")


@dataclass(frozen=True, slots=True)
class Release:
    """Let what is held go on. Does nothing if nothing is held."""

    word: Literal["release"] = "release"


@dataclass(frozen=True, slots=True)
class Disarm:
    """Forget the hold and the wire fault; what is held goes on."""

    word: Literal["disarm"] = "disarm"


@dataclass(frozen=True, slots=True)
class Advertise:
    """The answer to Opened: what the link is to call its address. "": what it is."""

    address: str
    word: Literal["advertise"] = "advertise"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker's first words on a connection."""

    worker: str
    incarnation: str
    pid: int
    word: Literal["arrived"] = "arrived"


@dataclass(frozen=True, slots=True)
class Opened:
    """The worker's link is open at `address`, and waits for an Advertise."""

    address: str
    word: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True)
class Obeyed:
    """The last order but Advertise is carried out. Orders are answered one by one, in turn."""

    word: Literal["obeyed"] = "obeyed"


@dataclass(frozen=True, slots=True)
class Held:
    """A job reached the phase of the armed hold, and stands there."""

    request: str
    attempt: int
    phase: Phase
    word: Literal["held"] = "held"


@dataclass(frozen=True, slots=True)
class LetGo:
    """It goes on. released: by order; otherwise its time was over, or its transfer ended."""

    request: str
    attempt: int
    released: bool
    word: Literal["let_go"] = "let_go"


@dataclass(frozen=True, slots=True)
class Struck:
    """The wire fault was applied. transfer: of the ticket, in hex. unit: the frame's."""

    kind: Damage
    transfer: str
    unit: int
    word: Literal["struck"] = "struck"


Order = Hold | WireFault | Release | Disarm | Advertise
News = Arrived | Opened | Obeyed | Held | LetGo | Struck

_WORDS: TypeAdapter[Order | News] = TypeAdapter(Annotated[Order | News, Field(discriminator="word")])


def pack(words: Order | News) -> bytes:
    body = _WORDS.dump_json(words)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Order | News:
    """Of what follows the length. Raises ValueError."""
    return _WORDS.validate_json(body)
