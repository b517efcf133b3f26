"""Frames: what is encoded verifies, and nothing else does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.plan import Unit
from headrace.transfer.wire import (
    END_FRAME_BYTES,
    HEADER_BYTES,
    End,
    EndStatus,
    Refusal,
    Seal,
    encode_end,
    encode_unit,
    fold,
    verify_end,
    verify_unit,
)

TICKET = Ticket(
    transfer=bytes(range(16)),
    secret=b"s" * 16,
    job="j",
    attempt=3,
    source=WorkerRef("p", "1"),
    target=WorkerRef("d", "1"),
    model_digest=b"m" * 16,
    layout=KvLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32"),
    first_block=7,
    block_count=10,
    unit_blocks=4,
    link="tcp",
    address="127.0.0.1:1",
    context=b"c" * 16,
)
SEAL = Seal.of(TICKET)
UNIT = Unit(1, 4, 4)


def framed(payload: bytes, ticket: Ticket = TICKET, unit: Unit = UNIT) -> bytearray:
    frame = bytearray(HEADER_BYTES) + payload
    encode_unit(Seal.of(ticket), unit, memoryview(frame))
    return frame


@given(st.binary(max_size=300))
def test_a_unit_verifies_with_its_own_checksum(payload: bytes) -> None:
    frame = bytearray(HEADER_BYTES) + payload
    checksum = encode_unit(SEAL, UNIT, memoryview(frame))
    assert frame[HEADER_BYTES:] == payload
    assert verify_unit(SEAL, UNIT, memoryview(frame)) == checksum


@given(st.binary(min_size=1, max_size=64), st.data())
def test_any_changed_byte_is_refused(payload: bytes, data: st.DataObject) -> None:
    frame = framed(payload)
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    assert isinstance(verify_unit(SEAL, UNIT, memoryview(frame)), Refusal)


@pytest.mark.parametrize(
    ("ticket", "unit", "reason"),
    [
        (replace(TICKET, secret=b"t" * 16), UNIT, Refusal.SECRET),
        (replace(TICKET, transfer=bytes(16)), UNIT, Refusal.TRANSFER),
        (replace(TICKET, attempt=2), UNIT, Refusal.ATTEMPT),
        (replace(TICKET, source=WorkerRef("p", "0")), UNIT, Refusal.SOURCE),
        (replace(TICKET, target=WorkerRef("d", "0")), UNIT, Refusal.TARGET),
        (replace(TICKET, model_digest=b"n" * 16), UNIT, Refusal.MODEL),
        (replace(TICKET, context=b"d" * 16), UNIT, Refusal.CONTEXT),
        (TICKET, Unit(2, 4, 4), Refusal.UNIT),
        (TICKET, Unit(1, 5, 4), Refusal.BLOCKS),
        (TICKET, Unit(1, 4, 3), Refusal.BLOCKS),
    ],
    ids=str,
)
def test_refusals_name_what_differs(ticket: Ticket, unit: Unit, reason: Refusal) -> None:
    assert verify_unit(SEAL, UNIT, memoryview(framed(b"payload", ticket, unit))) is reason


def test_other_lengths_kinds_and_blanks_are_refused() -> None:
    frame = framed(b"payload")
    assert verify_unit(SEAL, UNIT, memoryview(frame + b"!")) is Refusal.LENGTH
    assert verify_unit(SEAL, UNIT, memoryview(frame)[:-1]) is Refusal.LENGTH
    assert verify_unit(SEAL, UNIT, memoryview(bytearray(len(frame)))) is Refusal.MAGIC
    end = encode_end(SEAL, End(EndStatus.COMPLETE, 0, b""))
    assert verify_unit(SEAL, UNIT, memoryview(end)) is Refusal.KIND


@given(st.sampled_from(EndStatus), st.integers(1, 65_534), st.binary(min_size=16, max_size=16))
def test_an_end_comes_back(status: EndStatus, units_sent: int, digest: bytes) -> None:
    end = End(status, units_sent, digest)
    frame = encode_end(SEAL, end)
    assert len(frame) == END_FRAME_BYTES
    assert verify_end(SEAL, memoryview(frame)) == end
    assert verify_end(Seal.of(replace(TICKET, secret=b"t" * 16)), memoryview(frame)) is Refusal.SECRET


def test_an_end_after_nothing_has_no_digest() -> None:
    end = End(EndStatus.CANCELLED, 0, b"")
    assert verify_end(SEAL, memoryview(encode_end(SEAL, end))) == end


def test_the_digest_depends_on_order() -> None:
    one, two = b"1" * 16, b"2" * 16
    assert fold(fold(b"", one), two) != fold(fold(b"", two), one)
