"""Heads: what is packed is unpacked, and not one flipped bit goes by."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.transfer.link import FrameId
from headrace.transfer.tcp_head import HEAD_BYTES, Head, ProtocolBreach, Verb, pack_head, unpack_head

HEAD = Head(Verb.OFFER, FrameId(b"tcp-head-unit-01", 7), 1 << 40)
HEADS = st.builds(
    Head,
    st.sampled_from(Verb),
    st.builds(FrameId, st.binary(min_size=16, max_size=16), st.integers(0, 0xFFFF)),
    st.integers(0, (1 << 64) - 1),
)


@given(HEADS)
def test_a_head_comes_back(head: Head) -> None:
    packed = pack_head(head)
    assert len(packed) == HEAD_BYTES
    assert unpack_head(packed) == head


@pytest.mark.parametrize("bit", range(8 * HEAD_BYTES))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    packed = bytearray(pack_head(HEAD))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolBreach):
        unpack_head(bytes(packed))


@pytest.mark.parametrize(("at", "value", "reason"), [(0, 1, "protocol 1"), (1, 99, "99")])
def test_other_protocols_and_words_are_named(at: int, value: int, reason: str) -> None:
    packed = bytearray(pack_head(HEAD))
    packed[at] = value
    packed[-8:] = xxhash.xxh3_64_digest(bytes(packed[:-8]))
    with pytest.raises(ProtocolBreach, match=reason):
        unpack_head(bytes(packed))
