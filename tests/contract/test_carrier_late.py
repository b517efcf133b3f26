"""The receiver's clock against its sender's: what a sender would still deliver is not given up where it goes to."""

import random

import pytest
from carrier_desk import Clock, Desk, begin, steps
from carrier_road import Road

from headrace.core.ticket import Ticket
from headrace.transfer.carrier import TransferStatus
from headrace.transfer.link import FrameId
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState

OPTIONS = TransferOptions(send_slabs=8, receive_slabs=8)
STALLS = "headrace_kv_transfer_stalls_total"


@pytest.fixture
def desk_options() -> TransferOptions:
    return OPTIONS


def ends_of(desk: Desk, ticket: Ticket) -> list[TransferStatus]:
    return [report.status for report in desk.reports if report.transfer == ticket.transfer]


def others_go_on(desks: tuple[Desk, Desk], clock: Clock, seconds: float) -> None:
    """The decode worker takes another transfer of the same sender every four seconds."""
    prefill, decode = desks
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(until, clock.now + 4.0)
        other = begin(prefill, decode, 4)
        assert ends_of(prefill, other) == ends_of(decode, other) == [TransferStatus.COMPLETE]


def test_what_is_late_among_others_of_its_sender_arrives(desks: tuple[Desk, Desk], clock: Clock) -> None:
    """A slow way on which transfers take their turn: the sender sees that its peer takes pages, and has patience."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit == 1)
    ticket = begin(prefill, decode, 12)
    road.holds = lambda frame: False
    others_go_on(desks, clock, OPTIONS.short_s - 1.0)
    assert ends_of(prefill, ticket) == ends_of(decode, ticket) == []
    road.arrive(FrameId(ticket.transfer, 1))
    steps(prefill, decode)
    assert ends_of(prefill, ticket) == ends_of(decode, ticket) == [TransferStatus.COMPLETE]


def test_what_its_sender_gives_up_among_others_is_given_up(desks: tuple[Desk, Desk], clock: Clock) -> None:
    """Its End is here already and promised more: it cannot tell that any more."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit == 1)
    ticket = begin(prefill, decode, 12)
    road.holds = lambda frame: False
    others_go_on(desks, clock, OPTIONS.short_s + 1.0)
    assert (ends_of(prefill, ticket), ends_of(decode, ticket)) == ([TransferStatus.FAILED], [])
    others_go_on(desks, clock, OPTIONS.beyond_s)
    assert ends_of(decode, ticket) == [TransferStatus.FAILED]
    assert decode.sample(STALLS, reason="overdue") == 1


def test_discards_are_waited_for_as_long_as_their_sender_may_deliver_them(
    desks: tuple[Desk, Desk], clock: Clock
) -> None:
    """To hang up on a peer that is only slow would cost its other transfers."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit in {1, 2})
    ticket = begin(prefill, decode, 12)
    road.holds = lambda frame: False
    decode.transfers.cancel(ticket.transfer)
    steps(decode, prefill)
    others_go_on(desks, clock, OPTIONS.linger_s - 1.0)
    assert decode.slabs(SlabState.POSTED) == 2
    for unit in (1, 2):
        road.arrive(FrameId(ticket.transfer, unit))
    steps(prefill, decode)
    assert decode.transfers.empty
    assert prefill.transfers.empty
    assert decode.slabs(SlabState.FREE) == 16


@pytest.mark.parametrize("seed", range(40))
def test_no_receiver_gives_up_before_its_sender(desks: tuple[Desk, Desk], clock: Clock, seed: int) -> None:
    """However frames come: one that its link lost for good is not among them."""
    prefill, decode = desks
    dice = random.Random(seed)
    road = Road(prefill, lambda frame: dice.random() < 0.3)
    haste = dice.choice([2.0, 6.0, 20.0, 60.0])
    tickets = [begin(prefill, decode, 4 * dice.randrange(1, 5)) for _ in range(3)]
    for _ in range(60):
        clock.now = min(clock.now + dice.expovariate(1 / haste), prefill.tenure.due, decode.tenure.due)
        road.arrive(*(frame for frame in road.held if dice.random() < 0.2))
        for _ in range(2):
            steps(prefill, decode, rounds=1)
            road.look()
        if dice.random() < 0.2:
            tickets.append(begin(prefill, decode, 4))
        for ticket in tickets:
            assert TransferStatus.FAILED not in ends_of(decode, ticket) or ends_of(prefill, ticket)
