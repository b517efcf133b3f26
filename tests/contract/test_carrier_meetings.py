"""Calls ahead of a first transfer, over every link."""

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from carrier_pair import Pair
from transfer_peer import Peer, ProcessPeer, until

from headrace.transfer.carrier import TransferStatus
from headrace.transfer.site import TransferOptions

MEETINGS = "headrace_kv_meetings_total"
SOME_PORT = "127.0.0.1:1/0123456789abcdef"
NOWHERE = {"loopback": "loopback:999", "tcp": SOME_PORT, "ucx": SOME_PORT, "nccl": f"{SOME_PORT}/2"}


def connections(peer: Peer, to: ProcessPeer) -> int:
    """TCP connections of this process to the one that `to` is."""
    there = {one.laddr.port for one in psutil.Process(to.process.pid).net_connections("tcp")}
    here = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.raddr.port in there for one in here)


@pytest.mark.parametrize("wiring", ["loopback", "tcp", "ucx", "nccl", "tcp-process", "ucx-process", "nccl-process"])
def test_who_was_met_is_there_and_transfers_follow(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    assert [made.p.meet(made.d.address()) for _ in range(2)] == ["", ""]
    assert made.p.sample(MEETINGS, outcome="met") == 2
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert {peer.report().status for peer in (made.p, made.d)} == {TransferStatus.COMPLETE}
    made.home()


@pytest.mark.parametrize("wiring", ["tcp-process", "ucx-process"])
def test_the_first_transfer_finds_the_connection_open(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, swap=True)
    assert connections(made.p, made.child()) == 0
    assert made.p.meet(made.d.address()) == ""
    open_before = connections(made.p, made.child())
    assert open_before > 0
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.p.report().status is TransferStatus.COMPLETE
    assert connections(made.p, made.child()) == open_before


@pytest.mark.parametrize("wiring", ["loopback", "tcp", "ucx", "nccl"])
def test_who_is_not_there_is_said(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    for address in (NOWHERE[wiring], "no address"):
        assert made.p.meet(address) != ""
    assert made.p.sample(MEETINGS, outcome="failed") == 2
    # The link is as good as before.
    assert made.p.meet(made.d.address()) == ""


@pytest.mark.parametrize("wiring", ["tcp-process", "ucx-process"])
def test_who_stands_still_is_given_up_after_its_time_and_met_later(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(silent_s=0.3), swap=True)
    child, address = made.child().process.pid, made.d.address()
    os.kill(child, signal.SIGSTOP)
    until(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED, "the child stands still")
    try:
        assert "did not answer within 0.3 s" in made.p.meet(address)
    finally:
        os.kill(child, signal.SIGCONT)
    assert made.p.meet(address) == ""


@pytest.mark.parametrize("wiring", ["loopback", "tcp"])
def test_a_link_that_breaks_and_a_worker_that_stops_say_so(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(rebuilds=0))
    made.p.watched.raising["send"] = 1
    assert "broke" in made.p.meet(made.d.address())
    assert "broke" in made.p.meet(made.d.address())
