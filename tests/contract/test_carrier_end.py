"""The closing frame of a transfer whose connection breaks under it: said once more, over another one."""

from collections.abc import Callable

import pytest
from carrier_desk import Clock, Desk, begin, steps
from carrier_pair import Pair
from carrier_road import Road
from test_carrier_overdue import hang_up
from transfer_peer import Peer, until

from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.link import END_UNIT, FrameId, Receipt, ReceiptState
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState

OPTIONS = TransferOptions(send_slabs=8, receive_slabs=8)
COMPLETE, FAILED = TransferStatus.COMPLETE, TransferStatus.FAILED


@pytest.fixture
def desk_options() -> TransferOptions:
    return OPTIONS


def statuses(*desks: Desk) -> list[list[TransferStatus]]:
    return [[report.status for report in desk.reports] for desk in desks]


def at_rest(*desks: Desk) -> None:
    for desk in desks:
        assert desk.transfers.empty
        assert desk.slabs(SlabState.FREE) == 16
    assert desks[0].tenure.transfers._site.peers.nbytes == 0


def test_an_end_that_alone_is_lost_is_said_again(desks: tuple[Desk, Desk]) -> None:
    """Every page is there: nothing of it need be computed again."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit == END_UNIT)
    ticket = begin(prefill, decode, 12)
    assert statuses(prefill, decode) == [[], []]
    road.holds = lambda frame: False
    road.lose(FrameId(ticket.transfer, END_UNIT))
    steps(prefill, decode)
    assert statuses(prefill, decode) == [[COMPLETE], [COMPLETE]]
    assert [frame.unit for frame in road.sent] == [0, 1, 2, END_UNIT, END_UNIT]
    at_rest(prefill, decode)


def test_it_is_said_again_once(desks: tuple[Desk, Desk]) -> None:
    """A second time the peer is gone, most likely; its own clock ends what waits there."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit == END_UNIT)
    ticket = begin(prefill, decode, 12)
    for _ in range(2):
        road.lose(FrameId(ticket.transfer, END_UNIT))
        steps(prefill, decode)
    assert statuses(prefill, decode) == [[FAILED], []]
    assert "did not take the pages: the connection broke" in str(prefill.reports[0].error)
    assert [frame.unit for frame in road.sent].count(END_UNIT) == 2
    at_rest(prefill)


def taken_unbeknown(prefill: Desk, decode: Desk) -> tuple[Road, FrameId]:
    """A transfer whose End came, and whose sender says it again: nobody takes it from the road any more."""
    road = Road(prefill, lambda frame: frame.unit == END_UNIT)
    ticket = begin(prefill, decode, 12)
    end = FrameId(ticket.transfer, END_UNIT)
    road.holds = lambda frame: frame == end
    road.lose(end, taken=True)
    steps(prefill, decode)
    return road, end


def test_one_that_came_though_its_sender_does_not_know_costs_the_sender_a_wait(
    desks: tuple[Desk, Desk], clock: Clock
) -> None:
    """Nobody has a place for the second: the receiver is done. To ask it back could be to hang up on a peer that is
    well, and takes what else is sent to it."""
    prefill, decode = desks
    road, end = taken_unbeknown(prefill, decode)
    assert statuses(prefill, decode) == [[], [COMPLETE]]
    clock.now += OPTIONS.silent_s * 0.8
    begin(prefill, decode, 12)
    assert statuses(prefill, decode) == [[COMPLETE], [COMPLETE, COMPLETE]]
    clock.now += OPTIONS.silent_s * 0.2
    steps(prefill, decode)
    assert statuses(prefill, decode) == [[COMPLETE, FAILED], [COMPLETE, COMPLETE]]
    at_rest(prefill, decode)
    assert road.held == (end,)


def test_what_is_not_taken_the_second_time_says_nothing_of_the_peers_speed(
    desks: tuple[Desk, Desk], clock: Clock
) -> None:
    prefill, decode = desks
    taken_unbeknown(prefill, decode)
    clock.now += OPTIONS.silent_s
    steps(prefill, decode)
    begin(prefill, decode, 12)
    assert prefill.tenure.transfers._site.throughput._seconds == 0.0


@pytest.mark.parametrize("first", ["the end", "a unit"])
def test_a_receiver_hears_that_it_broke_off_whichever_frame_fails_first(desks: tuple[Desk, Desk], first: str) -> None:
    """What is under way fails frame by frame, and not all between two steps."""
    prefill, decode = desks
    road = Road(prefill, lambda frame: frame.unit != 0)
    ticket = begin(prefill, decode, 12)
    road.holds = lambda frame: False
    order = [END_UNIT, 1, 2] if first == "the end" else [1, 2, END_UNIT]
    for unit in order:
        road.lose(FrameId(ticket.transfer, unit))
        prefill.step()
    steps(prefill, decode)
    assert statuses(prefill, decode) == [[FAILED], [FAILED]]
    assert "failed after 1 unit" in str(decode.reports[0].error)
    assert [frame.unit for frame in road.sent].count(END_UNIT) == 2
    at_rest(prefill, decode)


def end_of(peer: Peer, ticket: Ticket) -> Receipt | None:
    tenure = peer.thread._tenure
    assert tenure is not None
    leg = tenure.transfers._legs.get((ticket.transfer, Side.SENDER))
    return None if leg is None else leg.end


@pytest.mark.parametrize("wiring", ["tcp", "ucx", "nccl"])
def test_over_a_real_link_the_end_comes_by_another_connection(pair: Callable[..., Pair], wiring: str) -> None:
    """A transfer that has nothing to send but its End, so that this alone waits for its receiver."""
    made = pair(wiring)
    ticket = made.ticket(0)
    made.p.send(ticket, 600.0)
    made.p.advance(ticket.transfer, ())
    until(lambda: end_of(made.p, ticket) is not None, "the end is under way")
    first = end_of(made.p, ticket)
    assert first is not None
    hang_up(made.p, made.link)
    until(lambda: first.state is ReceiptState.FAILED, "it is lost")
    made.d.receive(ticket, (), 600.0)
    assert {peer.report(15.0).status for peer in (made.p, made.d)} == {COMPLETE}
    made.home()


def test_what_is_under_way_when_its_sender_gives_up_may_yet_arrive_whole(desks: tuple[Desk, Desk]) -> None:
    """So that a prefill worker failed does not say that its decode worker lacks anything."""
    prefill, decode = desks
    ticket = decode.ticket(12)
    prefill.sends(ticket)
    prefill.step()
    prefill.transfers.cancel(ticket.transfer)
    decode.receives(ticket)
    steps(decode, prefill)
    assert statuses(prefill, decode) == [[TransferStatus.CANCELLED], [COMPLETE]]
    at_rest(prefill, decode)
