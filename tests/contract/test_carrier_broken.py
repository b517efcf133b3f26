"""A link that raises, hangs or lies in its peers' hands: its transfers fail, another link takes its place."""

import threading
from collections.abc import Callable

import pytest
from carrier_pair import SLABS, Pair
from test_carrier_reports import complete
from transfer_peer import until

from headrace.core.errors import Unavailable
from headrace.transfer.carrier import CarrierHealth, TransferReport, TransferStatus
from headrace.transfer.site import TransferOptions

LINKS = ["loopback", "tcp", "ucx", "nccl"]
REBUILDS = "headrace_kv_link_rebuilds_total"
WHOLE = CarrierHealth(free_slabs=64, quarantined_slabs=0, rebuilds=0)


def failed(report: TransferReport, remedy: str) -> None:
    assert report.status is TransferStatus.FAILED
    assert isinstance(report.error, Unavailable)
    assert report.error.remedy == remedy


@pytest.mark.parametrize("method", ["progress", "post", "close"])
@pytest.mark.parametrize("wiring", LINKS)
def test_a_receivers_link_that_breaks_is_replaced(pair: Callable[..., Pair], wiring: str, method: str) -> None:
    made = pair(wiring, options=TransferOptions(silent_s=1.0, drain_s=0.2))
    complete(made)
    assert made.d.health() == WHOLE
    former, ticket, late = made.d.address(), made.ticket(8), made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.d.wait_sample(SLABS, 1, state="posted")
    # 1. All that it carries fails, what begins at that moment too.
    made.d.watched.raising[method] = 1
    if method == "close":
        made.d.watched.raising["progress"] = 1
    made.d.receive(late, tuple(range(8, 16)), 20.0)
    reports = [made.d.report(5.0), made.d.report(5.0)]
    assert {report.transfer for report in reports} == {ticket.transfer, late.transfer}
    for report in reports:
        failed(report, "The request is retried.")
    # 2. A sender with a ticket of before finds nobody there, or nobody who listens.
    until(lambda: made.d.address() != former, "another address")
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.p.report(10.0).status is TransferStatus.FAILED
    # 3. Everything goes on by the other link, with all of its slabs.
    assert made.d.health() == CarrierHealth(64, 0, 1)
    assert made.d.sample(REBUILDS) == 1
    complete(made)
    made.home()
    assert made.d.broken.empty()


@pytest.mark.parametrize("method", ["progress", "send"])
@pytest.mark.parametrize("wiring", LINKS)
def test_a_senders_link_that_breaks_is_replaced(pair: Callable[..., Pair], wiring: str, method: str) -> None:
    made = pair(wiring)
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.watched.raising[method] = 1
    made.p.advance(ticket.transfer, tuple(range(8)))
    failed(made.p.report(5.0), "The request is retried.")
    made.d.cancel(ticket.transfer)
    made.d.report(5.0)
    complete(made)
    assert made.p.health().rebuilds == 1


def test_a_link_that_breaks_again_and_again_breaks_the_worker(pair: Callable[..., Pair]) -> None:
    made = pair("tcp", options=TransferOptions(rebuilds=2))
    for _ in range(2):
        former = made.d.address()
        made.d.watched.raising["progress"] = 1
        made.d.cancel(b"?" * 16)
        until(lambda former=former: made.d.address() != former, "another link")
        complete(made)
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.d.wait_sample(SLABS, 1, state="posted")
    made.d.watched.raising["progress"] = 1
    made.d.cancel(b"?" * 16)
    # 1. Who watches the worker hears it once.
    failed(made.d.report(5.0), "The worker must be restarted.")
    assert isinstance(made.d.broken.get(timeout=5.0), Unavailable)
    # 2. What begins later is reported as well.
    made.d.receive(ticket, tuple(range(8)), 20.0)
    failed(made.d.report(5.0), "The worker must be restarted.")
    made.d.send(ticket, 20.0)
    failed(made.d.report(5.0), "The worker must be restarted.")
    made.d.advance(ticket.transfer, (0,))
    made.d.cancel(ticket.transfer)
    assert made.d.health() == CarrierHealth(0, 0, 2)
    assert made.d.broken.empty()


def test_a_link_that_does_not_open_again_breaks_the_worker(pair: Callable[..., Pair]) -> None:
    made = pair("tcp")
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.d.opens = False
    made.d.watched.raising["progress"] = 1
    made.d.cancel(b"?" * 16)
    failed(made.d.report(5.0), "The request is retried.")
    assert "made not to open" in str(made.d.broken.get(timeout=5.0))
    made.d.receive(ticket, tuple(range(8)), 20.0)
    failed(made.d.report(5.0), "The worker must be restarted.")


@pytest.mark.parametrize("wiring", LINKS)
def test_a_link_in_its_peers_hands_is_replaced(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(quarantine_limit=1, quarantine_s=0.05))
    former, waiting = made.d.address(), made.ticket(8)
    made.d.receive(waiting, tuple(range(8)), 20.0)
    made.d.wait_sample(SLABS, 1, state="posted")
    made.d.watched.deaf = True
    for count in (1, 2):
        ticket = made.ticket(4)
        made.d.receive(ticket, (8, 9, 10, 11), 0.05)
        report = made.d.report(5.0)
        assert (report.transfer, report.status) == (ticket.transfer, TransferStatus.FAILED)
        if count == 1:
            # 1. As many as are borne: they are counted and stay out of use.
            made.d.wait_sample(SLABS, 1, state="quarantined")
            assert made.d.health() == CarrierHealth(62, 1, 0)
    # 2. One more, and the link goes, with what still waits there.
    report = made.d.report(5.0)
    assert report.transfer == waiting.transfer
    failed(report, "The request is retried.")
    until(lambda: made.d.address() != former, "another link")
    assert made.d.health() == CarrierHealth(64, 0, 1)
    assert made.d.sample("headrace_kv_slabs_quarantined_total") == 2
    complete(made)
    made.home()


def test_a_link_that_hangs_does_not_hold_who_closes(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.transfer.thread._JOIN_S", 0.1)
    made = pair("loopback")
    go_on = threading.Event()
    link = made.d.watched
    link.hung = go_on
    made.d.cancel(b"?" * 16)
    assert link.hanging.wait(5.0)
    made.d.close(0.0)
    go_on.set()
