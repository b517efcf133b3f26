"""What a damage does to a frame, and a harm to a message: something is wrong, and the original is as it was."""

import pytest

from headrace.chaos.damaged import damaged
from headrace.chaos.messages import Damage
from headrace.chaos.tcp_fault import Harm, TcpFault, harmed
from headrace.transfer.link import END_UNIT, FrameId
from headrace.transfer.tcp_head import HEAD_BYTES, Head, ProtocolBreach, Verb, pack_head, unpack_head
from headrace.transfer.wire import END_FRAME_BYTES, HEADER_BYTES

FRAME = bytes(range(256)) * 2
TRANSFER = b"t" * 16


def wrong_bits(one: bytes, other: bytes) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


@pytest.mark.parametrize("size", [HEADER_BYTES + 1, END_FRAME_BYTES, 512])
@pytest.mark.parametrize("kind", Damage)
def test_a_damaged_frame(kind: Damage, size: int) -> None:
    frame = bytearray(FRAME[:size])
    after = bytes(damaged(kind, memoryview(frame)))
    assert frame == FRAME[:size]
    match kind:
        case Damage.TRUNCATED:
            assert HEADER_BYTES <= len(after) < size
            assert frame.startswith(after)
        case Damage.CORRUPTED:
            (place,) = wrong_bits(frame, after)
            assert place >= HEADER_BYTES
        case Damage.CORRUPTED_HEADER:
            (place,) = wrong_bits(frame, after)
            assert place < HEADER_BYTES
        case _:
            assert after == frame


HEAD = pack_head(Head(Verb.DATA, FrameId(TRANSFER, 1), 100))


@pytest.mark.parametrize("payload", [b"", FRAME[:100]])
@pytest.mark.parametrize("harm", Harm)
def test_a_harmed_message(harm: Harm, payload: bytes) -> None:
    message = HEAD + payload
    after = harmed(harm, message, HEAD_BYTES)
    match harm:
        case Harm.DUPLICATED:
            assert after == message + message
        case Harm.DELAYED | Harm.REORDERED:
            assert after == message
        case Harm.TRUNCATED:
            assert after == message[:-1]
        case Harm.LOST:
            assert after == b""
        case Harm.CUT:
            assert 0 < len(after) < len(message)
            assert message.startswith(after)
        case Harm.CORRUPTED if payload:
            (place,) = wrong_bits(message, after)
            assert place >= HEAD_BYTES
        case _:
            with pytest.raises(ProtocolBreach):
                unpack_head(after[:HEAD_BYTES])
            assert after[HEAD_BYTES:] == payload


@pytest.mark.parametrize(
    ("fault", "fits"),
    [
        (TcpFault(Harm.LOST, Verb.PULL), True),
        (TcpFault(Harm.LOST, Verb.PULL, unit=END_UNIT), True),
        (TcpFault(Harm.LOST, Verb.PULL, transfer=TRANSFER), True),
        (TcpFault(Harm.LOST, Verb.TAKEN), False),
        (TcpFault(Harm.LOST, Verb.PULL, unit=0), False),
        (TcpFault(Harm.LOST, Verb.PULL, transfer=b"o" * 16), False),
    ],
)
def test_which_message_is_meant(fault: TcpFault, fits: bool) -> None:
    assert fault.fits(Head(Verb.PULL, FrameId(TRANSFER, END_UNIT))) is fits
