"""What a sender that leaves amid a frame had under way: nothing of it is written once its receive has failed."""

from collections.abc import Iterator

import numpy as np
import pytest
from link_drive import OpenLinks, drive, frame, settled

from headrace.transfer.link import Link, ReceiptState

SIZE = 32 << 20
PLACES = [1, SIZE // 16, SIZE // 5, SIZE // 3, SIZE // 2]
BEFORE, AFTER = 0, 9
A_WHILE = 30


# A group of nccl moves its frames on a thread of its own: a sender that gets ahead there has sent all.
WAYS = [("tcp", "in step"), ("tcp", "ahead"), ("ucx", "in step"), ("ucx", "ahead"), ("nccl", "in step")]


@pytest.fixture
def links(kind: str) -> Iterator[OpenLinks]:
    opened = OpenLinks(kind)
    yield opened
    opened.close_all()


def move(wake: int, *ends: Link) -> None:
    for _ in range(A_WHILE):
        for link in ends:
            link.progress(0.001, wake)


@pytest.mark.parametrize(("kind", "sender_is"), WAYS)
def test_nothing_is_written_after_a_receive_has_failed(links: OpenLinks, wake: int, kind: str, sender_is: str) -> None:
    receiver, memory = links.open(), np.zeros(SIZE, np.uint8)
    data, failed = np.full(SIZE, 7, np.uint8).data, 0
    for number, place in enumerate(PLACES):
        # 1. A sender withdraws amid its frame, with much of it in the kernel's hands or little.
        sender = links.open()
        memory[:] = BEFORE
        received = receiver.post(frame(number), memory.data)
        sent = sender.send(receiver.address, frame(number), data)
        drive(wake, lambda place=place, of=received: bool(memory[place]) or not of.pending, sender, receiver)  # type: ignore[misc]
        if sender_is == "ahead":
            move(wake, sender)
        sent.withdraw()
        # 2. The receive ends, one way or the other, and its buffer is somebody else's.
        drive(wake, settled(received), sender, receiver)
        failed += received.state is ReceiptState.FAILED
        memory[:] = AFTER
        # 3. Both go on, and the buffer stays as it is.
        move(wake, receiver, sender)
        assert not np.any(memory != AFTER)
        links.close(sender)
    assert failed, "every frame was whole before its sender left"
