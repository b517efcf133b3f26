"""FaultyLink's receipts: each settles once, what is withdrawn comes back, a buffer is read until then."""

import os
import time
from collections.abc import Iterator

import pytest

from headrace.chaos.aim import Aim
from headrace.chaos.faulty_link import FaultyLink
from headrace.chaos.messages import Damage, FrameKind, News, Struck, WireFault
from headrace.transfer.link import END_UNIT, SENT_TWICE, FrameId, Receipt, ReceiptState
from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.wire import HEADER_BYTES

DONE, FAILED, PENDING = ReceiptState.DONE, ReceiptState.FAILED, ReceiptState.PENDING
SIZE = HEADER_BYTES + 64
NAME, NEXT = FrameId(b"t" * 16, 0), FrameId(b"t" * 16, 1)


class Ends:
    """A faulty sender and a receiver in one process."""

    def __init__(self) -> None:
        board = Switchboard()
        self.told: list[News] = []
        self.aim = Aim(self.told.append)
        self.sender = FaultyLink(LoopbackLink(board), self.aim)
        self.receiver = LoopbackLink(board)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.open = True

    def arm(self, kind: Damage, *, frame: FrameKind = FrameKind.UNIT, seconds: float = 0.0) -> None:
        self.aim.arm(WireFault(kind, frame, seconds=seconds))

    def send(self, buffer: memoryview, name: FrameId = NAME) -> Receipt:
        return self.sender.send(self.receiver.address, name, buffer)

    def turn(self) -> None:
        self.sender.progress(0.0, self.wake)
        self.receiver.progress(0.0, self.wake)

    def close_sender(self) -> None:
        if self.open:
            self.sender.close()
        self.open = False

    def struck(self) -> bool:
        return any(isinstance(news, Struck) for news in self.told)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close_sender()
    made.receiver.close()
    os.close(made.wake)


def frame(fill: int = 7) -> memoryview:
    return memoryview(bytearray([fill]) * SIZE)


def empty() -> memoryview:
    return memoryview(bytearray(SIZE))


@pytest.mark.parametrize("kind", Damage)
def test_every_receipt_settles_by_the_time_the_link_is_closed(ends: Ends, kind: Damage) -> None:
    ends.arm(kind)
    into = empty()
    received, sent = ends.receiver.post(NAME, into), ends.send(frame())
    ends.turn()
    ends.turn()
    assert ends.struck()
    ends.close_sender()
    assert not sent.pending
    assert sent.state is (FAILED if kind is Damage.LOST else DONE)
    assert received.pending is (kind in {Damage.LOST, Damage.SWALLOWED})


@pytest.mark.parametrize("kind", [Damage.DELAYED, Damage.REORDERED, Damage.LOST])
def test_what_is_kept_can_be_withdrawn(ends: Ends, kind: Damage) -> None:
    ends.arm(kind, seconds=60.0)
    sent = ends.send(frame())
    ends.turn()
    assert sent.pending
    sent.withdraw()
    assert (sent.state, sent.reason) == (FAILED, "withdrawn")
    received = ends.receiver.post(NAME, empty())
    ends.turn()
    assert received.pending


@pytest.mark.parametrize("kind", sorted(set(Damage) - {Damage.SWALLOWED}, key=lambda kind: kind.value))
def test_what_is_on_its_way_is_not_sent_again(ends: Ends, kind: Damage) -> None:
    """Wherever the fault has it: here, or with the link below. What was settled at once is not on its way."""
    ends.arm(kind, seconds=60.0)
    first = ends.send(frame(1))
    ends.turn()
    again = ends.send(frame(2))
    assert (first.state, again.state, again.reason) == (PENDING, FAILED, SENT_TWICE)
    ends.close_sender()
    assert not first.pending


@pytest.mark.parametrize("kind", [Damage.DUPLICATED, Damage.CORRUPTED])
def test_what_the_link_below_has_can_be_withdrawn(ends: Ends, kind: Damage) -> None:
    ends.arm(kind)
    sent = ends.send(frame())
    ends.turn()
    assert sent.pending
    sent.withdraw()
    assert (sent.state, sent.reason) == (FAILED, "withdrawn")
    ends.turn()
    assert ends.receiver.post(NAME, empty()).state is not DONE


def test_a_delayed_frame_is_read_when_it_leaves(ends: Ends) -> None:
    """The buffer is the link's until then, so what stands in it then is what arrives."""
    ends.arm(Damage.DELAYED, seconds=0.02)
    buffer, into = frame(), empty()
    sent, received = ends.send(buffer), ends.receiver.post(NAME, into)
    ends.turn()
    assert (sent.state, received.state) == (PENDING, PENDING)
    buffer[-1] = 9
    began = time.monotonic()
    while sent.pending:
        ends.sender.progress(1.0, ends.wake)
    # It wakes by itself, when the frame is due.
    assert time.monotonic() - began < 0.9
    assert received.state is DONE
    assert into == buffer


def test_the_second_of_two_is_a_copy(ends: Ends) -> None:
    """Its sender has the buffer back when it leaves."""
    ends.arm(Damage.DUPLICATED)
    buffer, into = frame(), empty()
    received, sent = ends.receiver.post(NAME, into), ends.send(buffer)
    ends.turn()
    assert (sent.state, received.state) == (DONE, DONE)
    assert ends.struck()
    buffer[:] = empty()
    again = empty()
    assert ends.receiver.post(NAME, again).state is DONE
    assert again == frame() == into


def test_the_next_frame_overtakes(ends: Ends) -> None:
    ends.arm(Damage.REORDERED, seconds=60.0)
    sent = ends.send(frame())
    assert ends.receiver.post(NAME, empty()).pending
    following = ends.send(frame(8), NEXT)
    ends.turn()
    assert sent.state is DONE
    assert following.pending
    assert ends.receiver.post(NEXT, empty()).state is DONE


def test_a_frame_to_another_peer_overtakes_nothing(ends: Ends) -> None:
    ends.arm(Damage.REORDERED, seconds=60.0)
    received = ends.receiver.post(NAME, empty())
    ends.send(frame())
    ends.sender.send("loopback:99", NEXT, frame())
    ends.turn()
    assert received.pending


def test_a_frame_of_no_bytes_can_be_lost(ends: Ends) -> None:
    ends.arm(Damage.LOST, frame=FrameKind.MEET)
    nothing = memoryview(b"")
    lost = ends.send(nothing)
    assert lost.pending
    assert ends.struck()
    assert ends.send(nothing, NEXT).state is DONE


def test_units_ends_and_meetings_are_told_apart(ends: Ends) -> None:
    ends.arm(Damage.LOST, frame=FrameKind.END)
    into = ends.receiver.post(NAME, empty())
    assert ends.send(frame()).state is DONE
    assert ends.send(memoryview(b"")).state is DONE
    assert not ends.struck()
    assert ends.send(frame(), FrameId(b"t" * 16, END_UNIT)).pending
    assert ends.struck()
    assert into.state is DONE
