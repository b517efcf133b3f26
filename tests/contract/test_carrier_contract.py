"""One suite for the Carrier over every link, within one process and between two."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from carrier_pair import BYTES, REFUSED, SLABS, Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transfer_peer import BF16, FP32

from headrace.core.errors import InvalidRequest, TransferFailed
from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.site import TransferOptions

LINKS = ["loopback", "tcp", "ucx", "nccl"]
WIRINGS = [*LINKS, "tcp-process", "ucx-process", "nccl-process"]


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("layout", [BF16, FP32], ids=["bf16", "fp32"])
def test_whole_transfers_equal(pair: Callable[..., Pair], wiring: str, layout: KvLayout) -> None:
    made = pair(wiring, layout)
    total = 0
    for blocks, unit_blocks in ((1, 4), (4, 4), (7, 4), (5, 1), (9, 3), (160, 4), (0, 4)):
        # 1. P's pages lie in another order than D's.
        source, target = tuple(range(blocks)), tuple(199 - index for index in range(blocks))
        ticket = made.ticket(blocks, unit_blocks)
        made.d.receive(ticket, target, 20.0)
        made.p.send(ticket, 20.0)
        made.p.advance(ticket.transfer, source)
        # 2. Both report, and the bytes are the same.
        for peer, side in ((made.p, Side.SENDER), (made.d, Side.RECEIVER)):
            report = peer.report()
            assert report.error is None
            assert (report.transfer, report.side, report.status) == (ticket.transfer, side, TransferStatus.COMPLETE)
            assert (report.verified_blocks, report.payload_bytes) == (blocks, blocks * layout.block_bytes)
        assert made.p.contents(source) == made.d.contents(target)
        total += blocks * layout.block_bytes
    # 3. The counts are exact and everything is home.
    assert made.p.sample(BYTES, direction="sent") == total
    assert made.d.sample(BYTES, direction="received") == total
    made.home()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_any_progress_of_prefill_is_carried(
    switchboard_pair: Pair, steps: list[int], blocks: int, unit_blocks: int, send_first: bool
) -> None:
    made = switchboard_pair
    ticket, source = made.ticket(blocks, unit_blocks), tuple(range(100, 100 + blocks))
    opens = [lambda: made.d.receive(ticket, tuple(range(blocks)), 20.0), lambda: made.p.send(ticket, 20.0)]
    for begin in reversed(opens) if send_first else opens:
        begin()
    for step in [*sorted(steps), blocks]:
        made.p.advance(ticket.transfer, source[:step])
    assert made.p.report().status is TransferStatus.COMPLETE
    assert made.d.report().status is TransferStatus.COMPLETE
    assert made.d.contents(range(blocks)) == made.p.contents(source)


@pytest.fixture(scope="module")
def switchboard_pair() -> Iterator[Pair]:
    made = Pair("loopback", BF16, 200, TransferOptions(), swap=False)
    yield made
    made.p.close()
    made.d.close()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_units_leave_before_later_blocks_are_computed(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    ticket = made.ticket(12)
    made.d.receive(ticket, tuple(range(12)), 20.0)
    made.p.send(ticket, 20.0)
    # 1. Nothing leaves before the first unit is computed, and no half unit does.
    made.p.advance(ticket.transfer, tuple(range(6)))
    made.d.wait_sample(BYTES, 4 * BF16.block_bytes, direction="received")
    made.p.wait_sample("headrace_kv_transfer_units_total", 1, direction="sent")
    # 2. The rest follows, and a shorter advance than before changes nothing.
    made.p.advance(ticket.transfer, (0,))
    made.p.advance(ticket.transfer, tuple(range(12)))
    assert made.d.report().status is TransferStatus.COMPLETE
    assert made.p.report().status is TransferStatus.COMPLETE
    assert made.d.contents(range(12)) == made.p.contents(range(12))


@pytest.mark.parametrize("computed", [0, 6, 16])
@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_cancel_at_every_stage(pair: Callable[..., Pair], wiring: str, who: str, computed: int) -> None:
    made = pair(wiring)
    ticket = made.ticket(17)
    made.d.receive(ticket, tuple(range(17)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(computed)))
    sent = computed // 4 * 4
    made.d.wait_sample(BYTES, sent * BF16.block_bytes, direction="received")
    if who == "receiver":
        made.d.cancel(ticket.transfer)
        report = made.d.report(5.0)
        assert (report.status, report.error, report.verified_blocks) == (TransferStatus.CANCELLED, None, sent)
        writes = made.d.writes()
        made.p.advance(ticket.transfer, tuple(range(16)))
        made.p.cancel(ticket.transfer)  # the router aborts both legs
        assert made.p.report(5.0).status is TransferStatus.CANCELLED
        made.home()
        assert made.d.writes() == writes
        return
    made.p.cancel(ticket.transfer)
    assert made.p.report(5.0).status is TransferStatus.CANCELLED
    report = made.d.report(5.0)
    assert report.status is TransferStatus.FAILED
    assert isinstance(report.error, TransferFailed)
    assert report.verified_blocks == sent
    made.home()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_cancel_before_the_other_side_knows(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring)
    # 1. A receiver whose sender never comes gives its slab back at once.
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.d.cancel(ticket.transfer)
    assert made.d.report(5.0).status is TransferStatus.CANCELLED
    made.d.wait_sample(SLABS, made.options.send_slabs + made.options.receive_slabs, state="free")
    # 2. When the sender comes after all and is cancelled too, what it sent is drained.
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(4)))
    made.p.cancel(ticket.transfer)
    assert made.p.report(5.0).status is TransferStatus.CANCELLED
    made.home()
    assert made.d.writes() == 0
    # 3. Unknown transfers are ignored, and the next transfer works.
    made.p.cancel(b"?" * 16)
    made.p.advance(b"?" * 16, (1,))
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.d.report().status is TransferStatus.COMPLETE


FORGERIES: dict[str, Callable[[Ticket], Ticket]] = {
    "secret": lambda ticket: replace(ticket, secret=b"x" * 16),
    "attempt": lambda ticket: replace(ticket, attempt=2),
    "source": lambda ticket: replace(ticket, source=WorkerRef("prefill-0", "a0")),
    "target": lambda ticket: replace(ticket, target=WorkerRef("decode-0", "b0")),
    "model": lambda ticket: replace(ticket, model_digest=b"n" * 16),
    "context": lambda ticket: replace(ticket, context=b"o" * 16),
}


@pytest.mark.parametrize("reason", FORGERIES)
@pytest.mark.parametrize("wiring", LINKS)
def test_what_does_not_verify_is_refused(pair: Callable[..., Pair], wiring: str, reason: str) -> None:
    # A sender whose every frame is refused gives up by itself after drain_s.
    made = pair(wiring, options=TransferOptions(drain_s=0.1))
    ticket = made.ticket(8)
    forged = FORGERIES[reason](ticket)
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(forged, 20.0)
    made.p.advance(forged.transfer, tuple(range(8)))
    report = made.d.report(5.0)
    assert report.status is TransferStatus.FAILED
    assert isinstance(report.error, TransferFailed)
    assert (report.verified_blocks, made.d.writes()) == (0, 0)
    assert made.d.sample(REFUSED, reason=reason) >= 1
    # The router aborts the sender; nothing stays anywhere.
    made.p.cancel(forged.transfer)
    made.p.report(5.0)
    made.home()


@pytest.mark.parametrize(("offset", "reason"), [(0, "magic"), (60, "secret"), (-1, "checksum"), (500, "checksum")])
@pytest.mark.parametrize("wiring", LINKS)
def test_a_frame_changed_on_the_way_is_refused(
    pair: Callable[..., Pair], wiring: str, offset: int, reason: str
) -> None:
    made = pair(wiring)
    ticket = made.ticket(8)

    def tamper(frame: memoryview) -> None:
        frame[offset] ^= 0x40

    made.p.watched.tamper = tamper
    made.d.receive(ticket, tuple(range(8)), 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, tuple(range(4)))
    report = made.d.report(5.0)
    assert (report.status, report.verified_blocks, made.d.writes()) == (TransferStatus.FAILED, 0, 0)
    assert made.d.sample(REFUSED, reason=reason) == 1
    made.p.watched.tamper = None
    made.p.cancel(ticket.transfer)
    made.p.report(5.0)
    made.home()


def test_tickets_that_cannot_be_carried_are_refused(pair: Callable[..., Pair]) -> None:
    made = pair("loopback")
    ticket = made.ticket(8)
    for refused, blocks in (
        (replace(ticket, layout=FP32), 8),
        (replace(ticket, link="ucx"), 8),
        (replace(ticket, unit_blocks=5), 8),
        (replace(ticket, unit_blocks=0), 8),
        (ticket, 7),
    ):
        made.d.receive(refused, tuple(range(blocks)), 5.0)
        report = made.d.report(5.0)
        assert report.status is TransferStatus.FAILED
        assert isinstance(report.error, InvalidRequest)
    made.home()


@pytest.mark.parametrize("wiring", LINKS)
def test_a_peer_that_never_comes_ends_at_the_deadline(pair: Callable[..., Pair], wiring: str) -> None:
    made = pair(wiring, options=TransferOptions(drain_s=0.2, linger_s=0.2))
    ticket = made.ticket(8)
    made.d.receive(ticket, tuple(range(8)), 0.2)
    report = made.d.report(5.0)
    assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
    ticket = made.ticket(8)
    made.p.send(ticket, 0.2)
    made.p.advance(ticket.transfer, tuple(range(8)))
    assert made.p.report(5.0).status is TransferStatus.FAILED
    made.home()


def test_a_sender_whose_receiver_is_nowhere_fails_at_once(pair: Callable[..., Pair]) -> None:
    for wiring in LINKS:
        made = pair(wiring)
        ticket = replace(made.ticket(8), address="127.0.0.1:1/0123456789abcdef")
        made.p.send(ticket, 20.0)
        made.p.advance(ticket.transfer, tuple(range(8)))
        report = made.p.report(10.0)
        assert (report.status, report.verified_blocks) == (TransferStatus.FAILED, 0)
        made.home()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_many_transfers_share_few_slabs(pair: Callable[..., Pair], wiring: str) -> None:
    options = TransferOptions(send_slabs=3, receive_slabs=16)
    made = pair(wiring, blocks=16 * 12, options=options)
    tickets = [made.ticket(12) for _ in range(16)]
    pages = [tuple(range(index * 12, index * 12 + 12)) for index in range(16)]
    # 1. All wait at the receiver, whose slabs are just one for each; the senders come in the reverse order.
    for ticket, blocks in zip(tickets, pages, strict=True):
        made.d.receive(ticket, blocks, 30.0)
    for ticket, blocks in reversed(list(zip(tickets, pages, strict=True))):
        made.p.send(ticket, 30.0)
        made.p.advance(ticket.transfer, blocks)
    # 2. Every one completes.
    for peer in (made.p, made.d):
        assert {peer.report().status for _ in tickets} == {TransferStatus.COMPLETE}
    assert made.d.contents(range(16 * 12)) == made.p.contents(range(16 * 12))
    made.home()


def test_close_reports_what_is_open_and_ends(pair: Callable[..., Pair]) -> None:
    for wiring in LINKS:
        made = pair(wiring)
        ticket = made.ticket(8)
        made.d.receive(ticket, tuple(range(8)), 20.0)
        made.p.send(ticket, 20.0)
        made.d.close(0.2)
        made.p.close(0.2)
        assert made.d.report(5.0).status is TransferStatus.CANCELLED
        assert made.p.report(5.0).status is TransferStatus.CANCELLED
        # Afterwards calls are ignored.
        made.d.receive(ticket, tuple(range(8)), 20.0)
        made.d.cancel(ticket.transfer)
        made.d.close()
