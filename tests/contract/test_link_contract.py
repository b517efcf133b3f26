"""One suite for the Link contract over every link."""

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from link_drive import UCX_SHARED_MEMORY, UNDER_CHAOS, OpenLinks, buffer, carry, drive, frame, settled

from headrace.core.errors import StartupError
from headrace.transfer.factory import make_link
from headrace.transfer.link import END_UNIT, SENT_TWICE, FrameId, Receipt, ReceiptState
from headrace.transfer.readable import wait_readable

LINKS = ["loopback", "tcp", "ucx", UCX_SHARED_MEMORY, "nccl", UNDER_CHAOS]
NOBODY = "127.0.0.1:1/0123456789abcdef"
NOTHING = memoryview(b"")


@pytest.fixture(params=LINKS)
def links(request: pytest.FixtureRequest) -> Iterator[OpenLinks]:
    opened = OpenLinks(request.param)
    yield opened
    opened.close_all()


@pytest.mark.parametrize("size", [16, 128, 65_537, 16 << 20])
@pytest.mark.parametrize("post_first", [True, False])
def test_a_frame_arrives_whole(links: OpenLinks, wake: int, size: int, post_first: bool) -> None:
    left, right = links.open(), links.open()
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    into = buffer(size)
    if post_first:
        received = right.post(frame(0), into)
        left.progress(0.0, wake)
        right.progress(0.0, wake)
        sent = left.send(right.address, frame(0), data.data)
    else:
        sent = left.send(right.address, frame(0), data.data)
        left.progress(0.01, wake)
        right.progress(0.01, wake)
        assert sent.pending, "nothing is buffered on the way"
        received = right.post(frame(0), into)
    drive(wake, settled(sent, received), left, right)
    assert (sent.state, received.state) == (ReceiptState.DONE, ReceiptState.DONE)
    assert bytes(into) == data.tobytes()


def test_frames_match_by_id_both_ways_and_in_any_order(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    ids = [frame(unit, transfer) for transfer in (1, 2) for unit in (0, 1, 2, END_UNIT)]
    receipts: list[Receipt] = []
    arrived: dict[tuple[str, FrameId], memoryview] = {}
    for number, name in enumerate(ids):
        receipts.append(left.send(right.address, name, buffer(1000, number + 1)))
        receipts.append(right.send(left.address, name, buffer(1000, number + 101)))
    for name in reversed(ids):
        for side, link in (("right", right), ("left", left)):
            arrived[side, name] = buffer(1000)
            receipts.append(link.post(name, arrived[side, name]))
    drive(wake, settled(*receipts), left, right)
    assert {receipt.state for receipt in receipts} == {ReceiptState.DONE}
    for number, name in enumerate(ids):
        assert bytes(arrived["right", name]) == bytes([number + 1]) * 1000
        assert bytes(arrived["left", name]) == bytes([number + 101]) * 1000


def test_an_unposted_frame_blocks_no_other(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    stuck = left.send(right.address, frame(0), buffer(1 << 20))
    into = buffer(1 << 20)
    received = right.post(frame(1), into)
    sent = left.send(right.address, frame(1), buffer(1 << 20, 5))
    drive(wake, settled(sent, received), left, right)
    assert bytes(into) == b"\5" * (1 << 20)
    assert stuck.pending


def test_a_withdrawn_receive_settles_and_its_id_can_be_posted_again(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    first = buffer(128)
    received = right.post(frame(0), first)
    received.withdraw()
    received.withdraw()
    drive(wake, settled(received), right)
    assert received.state is ReceiptState.FAILED
    kept = bytes(first)
    again = buffer(128)
    received = right.post(frame(0), again)
    sent = left.send(right.address, frame(0), buffer(128, 9))
    drive(wake, settled(sent, received), left, right)
    assert received.state is ReceiptState.DONE
    assert bytes(again) == b"\x09" * 128
    assert bytes(first) == kept


def test_a_receive_withdrawn_as_its_frame_arrives_still_tells_the_truth(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    into = buffer(1 << 20)
    received = right.post(frame(0), into)
    sent = left.send(right.address, frame(0), buffer(1 << 20, 3))
    left.progress(0.0, wake)
    received.withdraw()
    drive(wake, settled(received), left, right)
    if received.state is ReceiptState.FAILED:
        into = buffer(1 << 20)
        received = right.post(frame(0), into)
    drive(wake, settled(sent, received), left, right)
    assert (sent.state, received.state) == (ReceiptState.DONE, ReceiptState.DONE)
    assert bytes(into) == b"\3" * (1 << 20)
    # Nothing stays behind that a later frame could meet.
    later = right.post(frame(1), buffer(128))
    sent = left.send(right.address, frame(1), buffer(128, 4))
    drive(wake, settled(sent, later), left, right)
    assert later.state is ReceiptState.DONE


@pytest.mark.parametrize("nbytes", [1 << 20, 0])
def test_a_frame_that_is_on_its_way_is_not_sent_again(links: OpenLinks, wake: int, nbytes: int) -> None:
    left, right, other = links.open(), links.open(), links.open()
    first = left.send(right.address, frame(0), buffer(nbytes, 1))
    if first.pending:  # the loopback has answered for nothing at once
        second = left.send(right.address, frame(0), buffer(nbytes, 2))
        assert (second.state, second.reason) == (ReceiptState.FAILED, SENT_TWICE)
        # It is told at once, by whoever waits for it.
        began = time.monotonic()
        left.progress(5.0, wake)
        assert time.monotonic() - began < 2.0
    # 1. The first is none the worse, and to another peer it is another frame.
    pairs = [(first, right), (left.send(other.address, frame(0), buffer(nbytes, 3)), other)]
    into = [buffer(nbytes), buffer(nbytes)]
    receipts = [sent for sent, _ in pairs]
    if nbytes:
        receipts += [link.post(frame(0), memory) for (_, link), memory in zip(pairs, into, strict=True)]
    drive(wake, settled(*receipts), left, right, other)
    assert {receipt.state for receipt in receipts} == {ReceiptState.DONE}
    assert [bytes(memory[:1]) for memory in into] == ([b"\1", b"\3"] if nbytes else [b"", b""])
    # 2. Once it has settled the way is open again, for this id too.
    if nbytes:
        carry(wake, left, right, frame(0))


def test_a_frame_larger_than_its_buffer_fails_at_the_receiver(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    memory = buffer(256)
    received = right.post(frame(0), memory[:128])
    sent = left.send(right.address, frame(0), buffer(200, 1))
    drive(wake, settled(received, sent), left, right)
    assert received.state is ReceiptState.FAILED
    assert bytes(memory[128:]) == bytes(128)


def test_a_withdrawn_send_settles(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    sent = left.send(right.address, frame(0), buffer(1 << 20))
    left.progress(0.01, wake)
    right.progress(0.01, wake)
    sent.withdraw()
    if links.notices_peers:
        drive(wake, settled(sent), left, right)
        assert sent.state is ReceiptState.FAILED
    else:
        # Nobody can take it back: it is the link's until the peer takes it.
        received = right.post(frame(0), buffer(1 << 20))
        drive(wake, settled(sent, received), left, right)
        assert sent.state is ReceiptState.DONE
    # The way to the peer is open again.
    carry(wake, left, right, frame(1))


@pytest.mark.parametrize("address", [NOBODY, "127.0.0.1:1", "localhost:1/0123456789abcdef", "nonsense"])
@pytest.mark.parametrize("nbytes", [128, 0])
def test_nobody_at_an_address_shows_in_the_receipt(links: OpenLinks, wake: int, address: str, nbytes: int) -> None:
    link = links.open()
    sent = link.send(address, frame(0), buffer(nbytes))
    if not links.notices_peers and address == NOBODY:
        link.progress(0.01, wake)
        assert sent.state is not ReceiptState.DONE
        return
    drive(wake, settled(sent), link)
    assert sent.state is ReceiptState.FAILED
    assert sent.reason


def test_a_frame_of_no_bytes_shows_that_the_way_is_open(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    # 1. Nobody posts for it, and it is answered as often as one asks.
    for unit in range(3):
        sent = left.send(right.address, frame(unit), NOTHING)
        drive(wake, settled(sent), left, right)
        assert sent.state is ReceiptState.DONE
    # 2. It took nothing away.
    carry(wake, left, right, frame(0))


def test_a_frame_of_no_bytes_waits_for_its_peer(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    sent = left.send(right.address, frame(0), NOTHING)
    if links.kind != "loopback":
        for _ in range(5):
            left.progress(0.0, wake)
        assert sent.pending
    drive(wake, settled(sent), left, right)
    assert sent.state is ReceiptState.DONE


def test_a_closed_link_writes_nowhere_whatever_is_sent_to_it(links: OpenLinks, wake: int) -> None:
    left, right, other = links.open(), links.open(), links.open()
    carry(wake, left, right, frame(0))
    into = buffer(1 << 20)
    posted = right.post(frame(1), into)
    links.close(right)
    assert posted.state is ReceiptState.FAILED
    kept = bytes(into)
    sent = left.send(right.address, frame(1), buffer(1 << 20, 9))
    # What others carry on for a while is long enough for a byte to arrive.
    for unit in range(2, 5):
        carry(wake, left, other, frame(unit))
    assert sent.state is not ReceiptState.DONE
    assert bytes(into) == kept


def test_close_fails_what_is_pending_on_both_sides(links: OpenLinks, wake: int) -> None:
    left, right = links.open(), links.open()
    posted = right.post(frame(5), buffer(128))
    offered = right.send(left.address, frame(6), buffer(128))
    awaited = left.send(right.address, frame(7), buffer(128))
    for link in (left, right, left, right):
        link.progress(0.01, wake)
    links.close(right)
    assert posted.state is ReceiptState.FAILED
    if not links.notices_peers:
        # Their buffers are the links' for the life of the process.
        assert offered.pending
        assert awaited.pending
        return
    assert offered.state is ReceiptState.FAILED
    drive(wake, settled(awaited), left)
    assert awaited.state is ReceiptState.FAILED


def test_progress_waits_without_work_and_wakes(links: OpenLinks, wake: int) -> None:
    link = links.open()
    link.progress(0.0, wake)
    # 1. Idle: it waits, and burns nothing.
    cpu, began = time.thread_time(), time.monotonic()
    while time.monotonic() - began < 0.3:
        link.progress(0.3, wake)
    assert time.thread_time() - cpu < 0.1
    # 2. A wake-up ends the wait at once, and is left unread.
    other = threading.Thread(target=os.eventfd_write, args=(wake, 1))
    began = time.monotonic()
    other.start()
    give_up_at = began + 5
    while not _readable(wake):
        link.progress(5.0, wake)
        assert time.monotonic() < give_up_at
    other.join()
    assert time.monotonic() - began < 2.0
    assert os.eventfd_read(wake) == 1


def _readable(fd: int) -> bool:
    return bool(wait_readable([fd], 0.0))


def test_links_that_cannot_be_made_say_what_to_do() -> None:
    with pytest.raises(StartupError, match="ucx, tcp, nccl, loopback"):
        make_link("pigeon")
    with pytest.raises(StartupError, match="ucx, tcp or nccl"):
        make_link("loopback")
    with pytest.raises(StartupError, match="cannot listen"):
        make_link("tcp", "203.0.113.7").open()
    with pytest.raises(StartupError, match="cma"):
        make_link("ucx", tls="tcp,posix,cma,self").open()
    with pytest.raises(StartupError, match="transports"):
        make_link("ucx", tls="nothing").open()
