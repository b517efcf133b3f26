"""The Carrier when a peer is killed or frozen inside a unit: real processes, real signals, every link between them."""

import signal
from collections.abc import Callable

import pytest
from carrier_pair import SLABS, Pair
from transfer_peer import HUGE, until

from headrace.core.errors import TransferFailed
from headrace.transfer.carrier import CarrierHealth, TransferStatus
from headrace.transfer.site import TransferOptions

BETWEEN_PROCESSES = ["tcp-process", "ucx-process", "nccl-process"]


@pytest.mark.parametrize("victim", ["sender", "receiver"])
@pytest.mark.parametrize("wiring", BETWEEN_PROCESSES)
def test_a_peer_killed_inside_a_unit(pair: Callable[..., Pair], wiring: str, victim: str) -> None:
    options = TransferOptions(send_slabs=4, receive_slabs=4)
    made = pair(wiring, HUGE, 8, options, swap=victim == "receiver")
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.d.wait_inside(0)
    made.child().process.send_signal(signal.SIGKILL)
    survivor = made.d if victim == "sender" else made.p
    report = survivor.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    assert isinstance(report.error, TransferFailed)
    if victim == "sender":
        assert survivor.writes() == 0
    made.child().process.wait(5)
    survivor.cancel(ticket.transfer)
    # The receiver still listens for an End that cannot come, but holds no slab.
    survivor.wait_sample(SLABS, 8, state="free")


@pytest.mark.parametrize("wiring", BETWEEN_PROCESSES)
def test_a_sender_frozen_inside_a_unit(pair: Callable[..., Pair], wiring: str) -> None:
    options = TransferOptions(send_slabs=4, receive_slabs=2, linger_s=0.2)
    made = pair(wiring, HUGE, 8, options)
    ticket = made.ticket(8)
    # The sender is ready first, so that the receiver's short time is all spent inside the unit.
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.p.wait_sample(SLABS, 1, state="posted")
    made.d.receive(ticket, tuple(range(8)), 2.0)
    made.d.wait_inside(0)
    made.child().process.send_signal(signal.SIGSTOP)
    # 1. The report comes at the deadline, and the slab is in doubt.
    report = made.d.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    until(lambda: made.d.sample(SLABS, state="quarantined") >= 1, "a slab is quarantined")
    # 2. When the sender goes on, its bytes reach no page and no slab that another transfer has.
    other = made.ticket(4)
    made.d.receive(other, (0, 1, 2, 3), 20.0)
    made.child().process.send_signal(signal.SIGCONT)
    made.d.wait_sample(SLABS, 0, state="quarantined")
    assert made.d.writes() == 0
    # 3. The other transfer completes with its own bytes.
    made.p.send(other, 20.0)
    made.p.advance(other.transfer, (4, 5, 6, 7))
    assert made.d.report().status is TransferStatus.COMPLETE
    assert made.d.contents((0, 1, 2, 3)) == made.p.contents((4, 5, 6, 7))
    assert made.d.contents((4, 5, 6, 7)) == bytes(4 * HUGE.block_bytes)


@pytest.mark.parametrize("wiring", BETWEEN_PROCESSES)
def test_a_receiver_frozen_inside_a_unit(pair: Callable[..., Pair], wiring: str) -> None:
    options = TransferOptions(send_slabs=2, receive_slabs=4, drain_s=0.3)
    made = pair(wiring, HUGE, 8, options, swap=True)
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 3.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.d.wait_inside(0)
    made.child().process.send_signal(signal.SIGSTOP)
    # 1. The sender is not held past its deadline, and gets its slabs back by hanging up.
    assert made.p.report(6.0).status is TransferStatus.FAILED
    made.p.wait_sample(SLABS, 6, state="free")
    # 2. The receiver finds out when it goes on, and used nothing of it.
    made.child().process.send_signal(signal.SIGCONT)
    assert made.d.report().status is TransferStatus.FAILED
    assert made.d.writes() == 0
    # 3. They can work together again.
    ticket = made.ticket(4)
    made.d.receive(ticket, (0, 1, 2, 3), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, (4, 5, 6, 7))
    assert made.d.report().status is TransferStatus.COMPLETE
    assert made.d.contents((0, 1, 2, 3)) == made.p.contents((4, 5, 6, 7))


@pytest.mark.parametrize("wiring", BETWEEN_PROCESSES)
def test_a_receiver_frozen_inside_a_unit_is_not_waited_for_until_the_deadline(
    pair: Callable[..., Pair], wiring: str
) -> None:
    options = TransferOptions(send_slabs=2, receive_slabs=4, silent_s=2.0, drain_s=0.3)
    made = pair(wiring, HUGE, 8, options, swap=True)
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 600.0)
    made.p.send(ticket, 600.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.d.wait_inside(0)
    made.child().process.send_signal(signal.SIGSTOP)
    report = made.p.report(10.0)
    assert report.status is TransferStatus.FAILED
    assert isinstance(report.error, TransferFailed)
    made.p.wait_sample(SLABS, 6, state="free")
    # It finds out when it goes on, by its sender's hanging up, and used nothing of it.
    made.child().process.send_signal(signal.SIGCONT)
    assert made.d.report().status is TransferStatus.FAILED
    assert made.d.writes() == 0


@pytest.mark.parametrize("wiring", BETWEEN_PROCESSES)
def test_a_link_whose_slabs_a_frozen_sender_holds_is_replaced(pair: Callable[..., Pair], wiring: str) -> None:
    options = TransferOptions(send_slabs=4, receive_slabs=2, quarantine_limit=0, quarantine_s=0.2)
    made = pair(wiring, HUGE, 8, options)
    former, ticket = made.d.address(), made.ticket(8)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    made.p.wait_sample(SLABS, 1, state="posted")
    made.d.receive(ticket, tuple(range(8)), 2.0)
    made.d.wait_inside(0)
    made.child().process.send_signal(signal.SIGSTOP)
    # 1. The transfer ends in its time, and a moment later all slabs are there again: others.
    assert made.d.report(5.0).status is TransferStatus.FAILED
    until(lambda: made.d.address() != former, "another link")
    assert made.d.health() == CarrierHealth(free_slabs=2, quarantined_slabs=0, rebuilds=1)
    # 2. When the sender goes on, its bytes reach no page and none of them.
    other = made.ticket(4)
    made.d.receive(other, (0, 1, 2, 3), 20.0)
    made.child().process.send_signal(signal.SIGCONT)
    assert made.p.report().status is TransferStatus.FAILED
    assert made.d.writes() == 0
    # 3. By the new link they can work together.
    made.p.send(other, 20.0)
    made.p.advance(other.transfer, (4, 5, 6, 7))
    assert made.p.report().status is TransferStatus.COMPLETE
    assert made.d.report().status is TransferStatus.COMPLETE
    assert made.d.contents((0, 1, 2, 3)) == made.p.contents((4, 5, 6, 7))
    assert made.d.contents((4, 5, 6, 7)) == bytes(4 * HUGE.block_bytes)
