"""What a TCP proxy does to one message of the tcp link, and which message that is.

Owns the words of it. It moves nothing.
"""

from dataclasses import dataclass
from enum import Enum

from headrace.transfer.tcp_head import Head, Verb


class Harm(Enum):
    """What becomes of a message: a head, and the payload behind it where there is one.

    duplicated: it comes twice in a row. delayed: it comes late, and so does what is behind it. reordered: the next
    message of its direction overtakes it. truncated: its last byte is missing. corrupted: a bit in the middle of its
    payload is wrong, or of its head if it has none. corrupted_head: a bit of its head is wrong. lost: it never comes.
    cut: the connection ends in the middle of it.
    """

    DUPLICATED = "duplicated"
    DELAYED = "delayed"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    CORRUPTED = "corrupted"
    CORRUPTED_HEAD = "corrupted_head"
    LOST = "lost"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class TcpFault:
    """Do `harm` once, to the message number `nth` (from 0) of that verb that comes from now on, over all connections.

    unit: of the frame that it is about; END_UNIT for an End, None for any. transfer: of that frame; b"" for any.
    seconds: for delayed; for reordered how long the next message is waited for.
    """

    harm: Harm
    verb: Verb
    nth: int = 0
    unit: int | None = None
    transfer: bytes = b""
    seconds: float = 0.5

    def fits(self, head: Head) -> bool:
        return (
            head.verb is self.verb
            and self.unit in {None, head.frame.unit}
            and (not self.transfer or head.frame.transfer == self.transfer)
        )


def harmed(harm: Harm, message: bytes, head_bytes: int) -> bytes:
    """The message as it is to be written. delayed and reordered do not change it."""
    match harm:
        case Harm.TRUNCATED:
            written = message[:-1]
        case Harm.CUT:
            written = message[: len(message) // 2]
        case Harm.CORRUPTED if len(message) > head_bytes:
            written = _flipped(message, (head_bytes + len(message)) // 2)
        case Harm.CORRUPTED | Harm.CORRUPTED_HEAD:
            written = _flipped(message, head_bytes // 2)
        case Harm.DUPLICATED:
            written = message + message
        case Harm.LOST:
            written = b""
        case _:
            written = message
    return written


def _flipped(message: bytes, place: int) -> bytes:
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
