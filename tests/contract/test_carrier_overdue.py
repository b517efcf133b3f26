"""What a receiver can know to have been sent, how it hears of what will not come, and that it waits for no more."""

from collections.abc import Callable

import pytest
from carrier_desk import Clock, Desk, steps
from carrier_pair import Pair
from transfer_peer import Peer

from headrace.core.errors import TransferFailed
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.link import END_UNIT, FrameId, Link, Receipt, ReceiptState
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState
from headrace.transfer.transfers import Transfers

OPTIONS = TransferOptions(send_slabs=8, receive_slabs=8)
STALLS = "headrace_kv_transfer_stalls_total"


@pytest.fixture
def desk_options() -> TransferOptions:
    return OPTIONS


def swallow(desk: Desk, unit: int) -> None:
    """That frame vanishes, and its sender's link says that it was taken."""
    link: Link = desk.tenure.link._link
    carry = link.send

    def send(address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        if frame.unit != unit:
            return carry(address, frame, buffer)
        receipt = Receipt(lambda _: None)
        receipt.settle(ReceiptState.DONE)
        return receipt

    link.send = send  # type: ignore[method-assign]


def lose_connection(desk: Desk, transfer: bytes) -> None:
    """All that is under way to the peer fails."""
    leg = desk.transfers._legs[transfer, Side.SENDER]
    for receipt in (*(flight.receipt for flight in leg.flights.values()), leg.end):
        if receipt is not None:
            receipt.withdraw()


@pytest.mark.parametrize("unit", [1, 2, END_UNIT])
def test_what_was_sent_and_does_not_come_fails_its_transfer(desks: tuple[Desk, Desk], clock: Clock, unit: int) -> None:
    prefill, decode = desks
    ticket = decode.ticket(12)
    swallow(prefill, unit)
    decode.receives(ticket)
    decode.step()
    prefill.sends(ticket)
    steps(prefill, decode)
    assert [report.status for report in prefill.reports] == [TransferStatus.COMPLETE]
    assert decode.tenure.due == clock.now + 10.0
    clock.now += 9.9
    decode.step()
    assert decode.reports == []
    clock.now += 0.1
    decode.step()
    (report,) = decode.reports
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 12 if unit == END_UNIT else 4 * unit)
    assert isinstance(report.error, TransferFailed)
    assert decode.sample(STALLS, reason="overdue") == 1
    # What it still waits for, by the sender's last word, it waits for as long again and no longer.
    clock.now += 10.0 if unit != END_UNIT else OPTIONS.linger_s
    steps(decode, rounds=2)
    assert decode.slabs(SlabState.FREE) == 16
    assert decode.transfers.empty


def test_what_may_not_have_been_sent_is_waited_for(desks: tuple[Desk, Desk], clock: Clock) -> None:
    prefill, decode = desks
    nothing_sent, half_sent, empty = decode.ticket(8), decode.ticket(8), decode.ticket(0)
    for ticket in (nothing_sent, half_sent, empty):
        decode.receives(ticket)
    prefill.transfers.send(half_sent, 1e6)
    prefill.transfers.advance(half_sent.transfer, (0, 1, 2, 3))
    steps(decode, prefill)
    clock.now += 500.0
    steps(decode, prefill)
    assert decode.reports == prefill.reports == []


def test_what_overtakes_is_no_reason_to_fail(desks: tuple[Desk, Desk], clock: Clock) -> None:
    """A frame that is late, and what was sent behind it is here: it has its time from then on."""
    prefill, decode = desks
    ticket = decode.ticket(12)
    link: Link = prefill.tenure.link._link
    carry, late = link.send, []

    def send(address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        if frame.unit != 1:
            return carry(address, frame, buffer)
        late.append((address, frame, bytearray(buffer)))
        receipt = Receipt(lambda _: None)
        receipt.settle(ReceiptState.DONE)
        return receipt

    link.send = send  # type: ignore[method-assign]
    decode.receives(ticket)
    decode.step()
    prefill.sends(ticket)
    steps(prefill, decode)
    clock.now += 9.0
    (address, frame, content) = late[0]
    carry(address, frame, memoryview(content))
    decode.step()
    assert [report.status for report in decode.reports] == [TransferStatus.COMPLETE]


def test_a_connection_that_breaks_costs_the_receiver_no_wait(desks: tuple[Desk, Desk]) -> None:
    """What was under way is lost, and the sender says over another connection how much there will be."""
    prefill, decode = desks
    ticket = decode.ticket(24)
    decode.receives(ticket)
    decode.step()
    prefill.sends(ticket)
    prefill.step()
    lose_connection(prefill, ticket.transfer)
    steps(prefill, rounds=2)
    (sent,) = prefill.reports
    assert (sent.status, sent.verified_blocks) == (TransferStatus.FAILED, 4)
    steps(decode, prefill, rounds=2)
    (received,) = decode.reports
    assert (received.status, received.verified_blocks) == (TransferStatus.FAILED, 4)
    assert "failed after 1 unit" in str(received.error)
    for desk in desks:
        assert desk.slabs(SlabState.FREE) == 16
        assert desk.transfers.empty


def test_a_peer_that_is_gone_leaves_no_mark_on_the_measured_speed(desks: tuple[Desk, Desk], clock: Clock) -> None:
    """It cannot even be told that its transfer broke off: that frame is under way no more than the others."""
    prefill, decode = desks

    def moved() -> float:
        ticket = decode.ticket(32)
        decode.receives(ticket)
        decode.step()
        prefill.sends(ticket)
        prefill.step()
        clock.now += 1.0
        steps(decode, prefill)
        assert prefill.transfers.empty
        return prefill.tenure.bytes_s

    speed = moved()
    assert speed > 0.0
    ticket = decode.ticket(24)
    prefill.sends(ticket)
    prefill.step()
    link: Link = prefill.tenure.link._link
    carry = link.send

    def refused(address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(lambda _: None)
        receipt.settle(ReceiptState.FAILED, "cannot be reached")
        return receipt

    link.send = refused  # type: ignore[method-assign]
    lose_connection(prefill, ticket.transfer)
    steps(prefill)
    assert prefill.transfers.empty
    link.send = carry  # type: ignore[method-assign]
    clock.now += 1000.0
    assert moved() == pytest.approx(speed, rel=0.5)


def test_what_was_said_to_be_under_way_and_was_lost_is_not_waited_for_long(
    desks: tuple[Desk, Desk], clock: Clock
) -> None:
    prefill, decode = desks
    ticket = decode.ticket(16)
    decode.receives(ticket)
    prefill.sends(ticket)
    prefill.step()
    # 1. Both give it up, and the sender's last word arrives: there are four more units.
    for desk in desks:
        desk.transfers.cancel(ticket.transfer)
    lose_connection(prefill, ticket.transfer)
    steps(decode, prefill)
    assert decode.slabs(SlabState.POSTED) == 4
    assert prefill.transfers.empty
    # 2. They do not come any more.
    assert decode.tenure.due == clock.now + 10.0
    clock.now += 10.0
    steps(decode, rounds=2)
    assert decode.slabs(SlabState.FREE) == 16
    assert decode.transfers.empty


def hang_up(peer: Peer, link: str) -> None:
    """Break its connections, on the thread that they belong to."""
    assert peer.watched is not None
    below = peer.watched.link

    def act(_: Transfers) -> None:
        for known in list(below._dialed.values()):  # type: ignore[attr-defined]
            if link == "ucx":
                known.hang_up()
            else:
                below._drop(known, "the test cut it")  # type: ignore[attr-defined]

    peer.thread._accept(act)


@pytest.mark.parametrize("wiring", ["tcp", "ucx", "nccl"])
def test_who_waits_hears_over_another_connection_that_one_broke(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    ticket = made.ticket(8)
    made.p.send(ticket, 600.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.p.wait_sample("headrace_kv_slabs", 2, state="posted")
    # 1. The connection goes while nobody has room for what is under way.
    hang_up(made.p, made.link)
    assert made.p.report(10.0).status is TransferStatus.FAILED
    # 2. Long before anybody's time is up the receiver knows.
    made.d.receive(ticket, tuple(range(8)), 600.0)
    report = made.d.report(10.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    assert "failed after 0 units" in str(report.error)
    made.home()
    # 3. They work together as before.
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert {peer.report().status for peer in (made.p, made.d)} == {TransferStatus.COMPLETE}
