"""Bytes a second over the time in which something is under way."""

import pytest

from headrace.transfer.throughput import Throughput

FEW = 7


def test_nothing_is_said_of_a_few_frames() -> None:
    """Neither of an End, which has no bytes: a link is known by its eighth frame of pages."""
    throughput = Throughput()
    for number in range(FEW):
        carry(throughput, 10.0 * number, 100, 1.0)
        carry(throughput, 10.0 * number + 5, 0, 1.0)
    throughput.sent(100.0)
    assert throughput.bytes_s == 0.0
    throughput.back(100, 101.0)
    assert throughput.bytes_s > 0.0


def carry(throughput: Throughput, at: float, nbytes: int, seconds: float) -> None:
    throughput.sent(at)
    throughput.back(nbytes, at + seconds)


def test_the_time_between_transfers_does_not_count() -> None:
    """Frames of 100 bytes that take half a second each, and long waits for a prompt between them."""
    throughput = Throughput()
    for number in range(40):
        throughput.sent(100.0 * number)
        throughput.back(100, 100.0 * number + 0.5)
    assert throughput.bytes_s == pytest.approx(200.0)


def test_frames_under_way_together_share_the_time() -> None:
    throughput = Throughput()
    for second in range(4):
        for _ in range(4):
            throughput.sent(float(second))
        for number in range(4):
            throughput.back(100, second + 0.25 * (number + 1))
    assert throughput.bytes_s == pytest.approx(400.0)


def test_a_frame_that_was_not_taken_says_nothing() -> None:
    throughput = Throughput()
    for number in range(8):
        carry(throughput, 50.0 * number, 100, 1.0)
        throughput.sent(50.0 * number + 5)
        throughput.back(100, None)
    assert throughput.bytes_s == pytest.approx(100.0)


def test_the_newest_count_most() -> None:
    throughput, now = Throughput(), 0.0
    for seconds in (10.0, *[0.1] * 200):
        carry(throughput, now, 100, seconds)
        now += seconds
    assert 900.0 < throughput.bytes_s <= 1000.0
