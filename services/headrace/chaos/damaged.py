"""What a damaged frame looks like: a copy of it with something wrong. Pure; the frame itself stays as it is."""

from collections.abc import Callable

from headrace.chaos.messages import Damage
from headrace.transfer.wire import HEADER_BYTES


def damaged(kind: Damage, frame: memoryview) -> memoryview:
    """kind: one that concerns the bytes; of the others it makes a plain copy."""
    copy = memoryview(bytearray(frame))
    return _WAYS[kind](copy) if kind in _WAYS else copy


def _truncated(copy: memoryview) -> memoryview:
    """Without the second half of its payload."""
    return copy[: HEADER_BYTES + (len(copy) - HEADER_BYTES) // 2]


def _corrupted(copy: memoryview) -> memoryview:
    """With one bit wrong in the middle of its payload: the highest of a number's exponent, so that nobody who used it
    would give the same answer."""
    middle = HEADER_BYTES + ((len(copy) - HEADER_BYTES) // 2 | _TOP_BYTE)
    copy[min(middle, len(copy) - 1)] ^= _EXPONENT_BIT
    return copy


def _corrupted_header(copy: memoryview) -> memoryview:
    """With one bit wrong in the middle of its header."""
    copy[HEADER_BYTES // 2] ^= 1
    return copy


# Numbers are little-endian, of 2 or 4 bytes.
_TOP_BYTE, _EXPONENT_BIT = 0b11, 0x40
_WAYS: dict[Damage, Callable[[memoryview], memoryview]] = {
    Damage.TRUNCATED: _truncated,
    Damage.CORRUPTED: _corrupted,
    Damage.CORRUPTED_HEADER: _corrupted_header,
}
