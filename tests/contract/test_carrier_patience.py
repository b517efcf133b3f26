"""How long a sender waits for its peer, whatever a router says of it; a receiver's clock is in test_carrier_overdue."""

from collections.abc import Callable

import pytest
from carrier_desk import Clock, Desk
from carrier_pair import Pair

from headrace.core.errors import TransferFailed
from headrace.transfer.carrier import TransferStatus
from headrace.transfer.link import END_UNIT
from headrace.transfer.peers import Patience
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState

LINKS = ["loopback", "tcp", "ucx", "nccl", "tcp-process", "ucx-process"]
STALLS = "headrace_kv_transfer_stalls_total"


@pytest.fixture
def desk_options() -> TransferOptions:
    return TransferOptions(send_slabs=8, receive_slabs=8, silent_s=5.0, short_s=30.0, drain_s=5.0)


@pytest.mark.parametrize("wiring", LINKS)
def test_a_peer_that_takes_nothing_ends_a_send(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(silent_s=0.3, drain_s=0.1))
    # 1. Nobody receives it: no link tells that from a control word that was lost on its way.
    ticket = made.ticket(8)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    report = made.p.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    assert isinstance(report.error, TransferFailed)
    assert 0.3 <= report.seconds < 5.0
    assert made.p.sample(STALLS, reason="silent") == 1
    made.home()
    # 2. They can work together as before.
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.p.report().status is TransferStatus.COMPLETE
    assert made.d.report().status is TransferStatus.COMPLETE


@pytest.mark.parametrize("unit", [0, 1, END_UNIT])
@pytest.mark.parametrize("wiring", ["loopback", "tcp", "ucx", "nccl"])
def test_a_word_that_is_lost_on_its_way_back_ends_a_send(pair: Callable[..., Pair], wiring: str, unit: int) -> None:
    made = pair(wiring, options=TransferOptions(silent_s=0.3, drain_s=0.1))
    made.p.watched.muted = frozenset({unit})
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    # The receiver has all of it. The sender cannot know, and says so in time: the router decides what becomes of it.
    assert made.d.report(5.0).status is TransferStatus.COMPLETE
    report = made.p.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, {0: 0, 1: 4, END_UNIT: 8}[unit])
    assert isinstance(report.error, TransferFailed)
    made.home()


def test_a_unit_that_waits_ends_its_transfer_in_time(desks: tuple[Desk, Desk], clock: Clock) -> None:
    prefill, decode = desks
    prefill.sends(decode.ticket(8))
    prefill.step()
    assert prefill.tenure.due == clock.now + 5.0
    clock.now += 4.5
    prefill.step()
    assert prefill.reports == []
    clock.now += 0.5
    prefill.step()
    (report,) = prefill.reports
    assert (report.status, report.seconds) == (TransferStatus.FAILED, pytest.approx(5.0))
    # It still has a moment to hear that it is over; then its slabs come back.
    assert prefill.tenure.due == pytest.approx(clock.now + 1.0)
    clock.now += 1.0
    prefill.step()
    prefill.step()
    assert prefill.transfers.empty
    assert prefill.slabs(SlabState.FREE) == 16


def test_an_end_that_waits_ends_its_transfer_too(desks: tuple[Desk, Desk], clock: Clock) -> None:
    prefill, decode = desks
    prefill.sends(decode.ticket(0))
    prefill.step()
    clock.now += 5.0
    prefill.step()
    assert [report.status for report in prefill.reports] == [TransferStatus.FAILED]


def test_a_peer_that_takes_other_frames_has_longer(desks: tuple[Desk, Desk], clock: Clock) -> None:
    prefill, decode = desks
    began = clock.now
    waiting, other = decode.ticket(4), decode.ticket(400)
    prefill.sends(waiting)
    prefill.step()
    # 1. Every second it takes a unit of another transfer.
    prefill.transfers.send(other, 1e6)
    decode.receives(other)
    for second in range(29):
        clock.now = began + 1.0 + second
        prefill.transfers.advance(other.transfer, tuple(range(4 * (second + 1))))
        for desk in (prefill, decode, prefill):
            desk.step()
    assert prefill.reports == []
    # 2. In the end it does not have a slab for this one.
    clock.now = began + 30.0
    prefill.step()
    (report,) = prefill.reports
    assert (report.transfer, report.status) == (waiting.transfer, TransferStatus.FAILED)
    assert prefill.sample(STALLS, reason="short") == 1


def test_silence_counts_only_while_something_waits(desks: tuple[Desk, Desk], clock: Clock) -> None:
    prefill, decode = desks
    ticket = decode.ticket(8)
    decode.receives(ticket)
    prefill.transfers.send(ticket, 1e6)
    prefill.transfers.advance(ticket.transfer, (0, 1, 2, 3))
    for desk in (decode, prefill, decode, prefill):
        desk.step()
    # 1. The prompt takes its time: neither side has anything to wait for.
    clock.now += 500.0
    prefill.step()
    decode.step()
    assert (prefill.reports, decode.reports) == ([], [])
    # 2. Then the rest comes.
    prefill.transfers.advance(ticket.transfer, tuple(range(8)))
    for _ in range(4):
        decode.step()
        prefill.step()
    assert [report.status for report in prefill.reports + decode.reports] == [TransferStatus.COMPLETE] * 2
    assert [report.messages for report in prefill.reports + decode.reports] == [3, 3]


def test_a_transfer_given_up_waits_for_a_peer_that_is_alive_and_not_for_a_silent_one() -> None:
    patience = Patience(silent_s=5.0, short_s=30.0)
    never = -float("inf")
    # 1. Silent for 4 s when the transfer ended, and silent on.
    assert patience.farewell_ends_at(closed_at=104.0, waiting_since=100.0, heard_at=never) == 105.0
    # 2. Silent for long: it gets one second more.
    assert patience.farewell_ends_at(closed_at=120.0, waiting_since=100.0, heard_at=never) == 121.0
    # 3. It takes other frames: it will come to these.
    assert patience.farewell_ends_at(closed_at=104.0, waiting_since=100.0, heard_at=115.0) == 120.0
    # 4. Not for ever, and nothing waits for nothing.
    assert patience.farewell_ends_at(closed_at=104.0, waiting_since=100.0, heard_at=133.0) == 134.0
    assert patience.ends_at(waiting_since=float("inf"), heard_at=never) == float("inf")


@pytest.mark.parametrize("before", ["open", "cancelled", "failed"])
def test_a_peer_known_to_be_dead_is_not_waited_for(desks: tuple[Desk, Desk], clock: Clock, before: str) -> None:
    """Nor when the transfer was over, and reported, before anybody knew."""
    prefill, decode = desks
    ticket = decode.ticket(16)
    prefill.sends(ticket)
    prefill.step()
    if before == "cancelled":
        prefill.transfers.cancel(ticket.transfer)
    elif before == "failed":
        clock.now += 5.0
        prefill.step()
    assert [report.status.value for report in prefill.reports] == [before] * (before != "open")
    assert prefill.slabs(SlabState.POSTED) == 4
    prefill.transfers.cancel(ticket.transfer, lost=True)
    prefill.step()
    assert [report.status.value for report in prefill.reports] == [before if before != "open" else "cancelled"]
    assert prefill.slabs(SlabState.FREE) == 16
    assert prefill.transfers.empty


def test_who_listens_for_a_dead_sender_does_so_for_a_moment_only(desks: tuple[Desk, Desk], clock: Clock) -> None:
    _, decode = desks
    ticket = decode.ticket(16)
    decode.receives(ticket)
    decode.step()
    decode.transfers.cancel(ticket.transfer)
    # 1. Of one that dies as its router says its last word may still come.
    decode.transfers.cancel(ticket.transfer, lost=True)
    decode.step()
    assert not decode.transfers.empty
    assert decode.tenure.due == clock.now + 1.0
    clock.now += 1.0
    for _ in range(2):
        decode.step()
    assert decode.transfers.empty
    assert decode.slabs(SlabState.FREE) == 16
    assert len(decode.reports) == 1


def test_nobody_hangs_up_on_a_peer_that_takes_things_whatever_a_router_says(
    desks: tuple[Desk, Desk], clock: Clock
) -> None:
    prefill, decode = desks
    waiting, other = decode.ticket(4), decode.ticket(400)
    prefill.sends(waiting)
    prefill.transfers.send(other, 1e6)
    prefill.transfers.advance(other.transfer, (0, 1, 2, 3))
    decode.receives(other)
    steps = (prefill, decode, prefill)
    for desk in steps:
        desk.step()
    prefill.transfers.cancel(waiting.transfer, lost=True)
    # 1. It takes other frames all the time, so it is not dead.
    for turn in range(2, 10):
        prefill.transfers.advance(other.transfer, tuple(range(4 * turn)))
        for desk in steps:
            desk.step()
        assert prefill.slabs(SlabState.POSTED) == 1
        clock.now += 0.5
    # 2. When it has taken nothing for a moment, it may well be.
    clock.now += 0.5
    prefill.step()
    assert prefill.slabs(SlabState.FREE) == 16
    assert [report.transfer for report in prefill.reports] == [waiting.transfer]
