"""Every transfer that was begun is reported once, under its own id, and its slabs come back, whatever raises."""

from collections.abc import Callable

import pytest
from carrier_desk import Desk
from carrier_pair import Pair

from headrace.core.errors import InternalError, TransferFailed
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.site import TransferOptions
from headrace.transfer.slabs import SlabState

LINKS = ["loopback", "tcp", "ucx", "nccl"]
UNDER_WAY = "headrace_kv_transfer_inflight_bytes"


def complete(made: Pair, blocks: int = 8) -> None:
    """One more transfer goes through, and nothing else is reported before it."""
    ticket = made.ticket(blocks)
    made.d.receive(ticket, tuple(range(blocks)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(blocks)))
    for peer in (made.p, made.d):
        report = peer.report()
        assert (report.transfer, report.status) == (ticket.transfer, TransferStatus.COMPLETE)
    assert made.d.contents(range(blocks)) == made.p.contents(range(blocks))


@pytest.mark.parametrize("wiring", LINKS)
def test_a_link_that_does_not_take_a_frame_back_costs_no_report(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(linger_s=0.2))
    address = made.d.address()
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.d.wait_sample("headrace_kv_slabs", 1, state="posted")
    # 1. Withdrawing the unit fails, once.
    made.d.watched.raising["withdraw"] = 1
    made.d.cancel(ticket.transfer)
    assert made.d.report(5.0).status is TransferStatus.CANCELLED
    # 2. It is asked again when nobody is waited for any more.
    made.home()
    complete(made)
    assert made.d.address() == address


@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("wiring", LINKS)
def test_pages_out_of_reach_cost_no_slab(pair: Callable[..., Pair], wiring: str, who: str) -> None:
    made = pair(wiring)
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    failing = made.p if who == "sender" else made.d
    failing.pages.failures = 1
    made.p.advance(ticket.transfer, tuple(range(4)))
    report = failing.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    assert isinstance(report.error, InternalError)
    if who == "sender":
        assert isinstance(made.d.report(5.0).error, TransferFailed)
    else:
        made.p.cancel(ticket.transfer)
        assert made.p.report(5.0).status is TransferStatus.CANCELLED
    made.home()
    complete(made)


@pytest.mark.parametrize("wiring", LINKS)
def test_a_repeated_id_is_ignored(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    ticket = made.ticket(8)
    for _ in range(2):
        made.d.receive(ticket, tuple(range(8)), 20.0)
        made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.p.report().status is TransferStatus.COMPLETE
    assert made.d.report().status is TransferStatus.COMPLETE
    complete(made)


def test_a_repeated_id_never_opens_the_fence_of_the_live_transfer(desks: tuple[Desk, Desk]) -> None:
    prefill, decode = desks
    ticket = decode.ticket(8)
    prefill.sends(ticket)
    prefill.step()
    # 1. While it is open there is one report to come, and it is its own.
    prefill.transfers.send(ticket, 1.0)
    assert prefill.reports == []
    prefill.transfers.cancel(ticket.transfer)
    assert [report.status for report in prefill.reports] == [TransferStatus.CANCELLED]
    # 2. When it is over and only drains, the id is refused: nobody uses its pages.
    prefill.transfers.send(ticket, 1.0)
    (_, refused) = prefill.reports
    assert (refused.side, refused.status) == (Side.SENDER, TransferStatus.FAILED)
    assert isinstance(refused.error, InternalError)


def test_a_leg_that_crashes_while_it_drains_is_written_off(
    desks: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = desks
    ticket, other = decode.ticket(8), decode.ticket(8)
    decode.receives(ticket)
    decode.step()
    decode.transfers.cancel(ticket.transfer)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.transfer.inbound.Inbound.drain", _crash)
        decode.step()
    # It held nothing any more, and does not come back at every step.
    assert decode.transfers.empty
    decode.receives(other)
    prefill.sends(other)
    for _ in range(4):
        decode.step()
        prefill.step()
    assert [report.status for report in decode.reports] == [TransferStatus.CANCELLED, TransferStatus.COMPLETE]
    assert decode.slabs(SlabState.POSTED) == 0


def test_a_sender_that_crashes_leaves_its_peers_share_to_others(
    desks: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = desks
    ticket = decode.ticket(8)
    prefill.sends(ticket)
    prefill.step()
    assert prefill.sample(UNDER_WAY) > 0
    prefill.transfers.cancel(ticket.transfer)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.transfer.outbound.Outbound.drain", _crash)
        prefill.step()
    assert prefill.transfers.empty
    assert prefill.sample(UNDER_WAY) == 0
    assert prefill.tenure._throughput._under_way == 0


def _crash(_: object) -> None:
    raise RuntimeError("made to fail")
