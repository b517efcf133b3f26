"""What one peer may have of a sender's slabs and bytes, and who goes next."""

from collections.abc import Callable, Iterator

import pytest
from carrier_desk import Clock, Desk
from transfer_peer import BF16

from headrace.transfer.carrier import TransferStatus
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState
from headrace.transfer.wire import HEADER_BYTES

UNIT_BYTES = HEADER_BYTES + 4 * BF16.block_bytes


@pytest.fixture
def desk() -> Iterator[Callable[..., Desk]]:
    board, clock, made = Switchboard(), Clock(), []

    def make(options: TransferOptions | None = None, seed: int = 0) -> Desk:
        made.append(Desk(board, clock, options or TransferOptions(), seed))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_peer_that_stands_still_keeps_its_share_only(desk: Callable[..., Desk]) -> None:
    prefill, frozen, sound = desk(TransferOptions(send_slabs=8), 1), desk(), desk()
    # 1. Many transfers to a decode worker that takes nothing: half of the slabs are with it.
    for _ in range(16):
        prefill.sends(frozen.ticket(16))
    prefill.step()
    prefill.step()
    assert prefill.slabs(SlabState.POSTED) == 4
    # 2. Those to another go as if it were not there.
    tickets = [sound.ticket(16) for _ in range(3)]
    for ticket in tickets:
        sound.receives(ticket)
        prefill.sends(ticket)
    for _ in range(12):
        sound.step()
        prefill.step()
    assert [report.status for report in prefill.reports] == [TransferStatus.COMPLETE] * 3
    assert [report.status for report in sound.reports] == [TransferStatus.COMPLETE] * 3


@pytest.mark.parametrize(("limit", "under_way"), [(2 * UNIT_BYTES, 2), (3 * UNIT_BYTES - 1, 2), (1, 1)])
def test_bytes_under_way_to_a_peer_are_bounded(desk: Callable[..., Desk], limit: int, under_way: int) -> None:
    prefill, decode = desk(TransferOptions(peer_bytes=limit), 1), desk()
    ticket = decode.ticket(24)
    prefill.sends(ticket)
    prefill.step()
    prefill.step()
    # A unit larger than the limit goes alone.
    assert prefill.slabs(SlabState.POSTED) == under_way
    decode.receives(ticket)
    for _ in range(16):
        decode.step()
        prefill.step()
        assert prefill.slabs(SlabState.POSTED) <= under_way
    assert [report.status for report in prefill.reports + decode.reports] == [TransferStatus.COMPLETE] * 2


def test_short_transfers_do_not_wait_for_the_end_of_a_long_one(desk: Callable[..., Desk]) -> None:
    # One slab for the peer: every unit is a turn.
    prefill, decode = desk(TransferOptions(send_slabs=2), 1), desk()
    long, short = decode.ticket(256), [decode.ticket(4) for _ in range(8)]
    for ticket in (long, *short):
        decode.receives(ticket)
        prefill.sends(ticket)
    sent = "headrace_kv_transfer_units_total"
    while len(prefill.reports) < len(short):
        decode.step()
        prefill.step()
        assert prefill.sample(sent, direction="sent") < 20, "the short ones wait"
    assert {report.transfer for report in prefill.reports} == {ticket.transfer for ticket in short}
    # And the long one is not forgotten.
    while len(prefill.reports) < 9:
        decode.step()
        prefill.step()
        assert prefill.sample(sent, direction="sent") <= 64 + 8
    assert prefill.reports[-1].status is TransferStatus.COMPLETE


def test_transfers_of_one_length_go_on_together(desk: Callable[..., Desk]) -> None:
    prefill, decode = desk(TransferOptions(send_slabs=2), 1), desk()
    tickets = [decode.ticket(40) for _ in range(5)]
    for ticket in tickets:
        decode.receives(ticket)
        prefill.sends(ticket)
    rounds = 0
    while not prefill.reports:
        decode.step()
        prefill.step()
        rounds += 1
        assert rounds < 1000
    # When the first is done, the others have at most a unit or two to go.
    assert prefill.sample("headrace_kv_transfer_units_total", direction="sent") >= 5 * 10 - 2 * 4
