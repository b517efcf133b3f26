"""Bytes a second over the time in which something is under way."""

import pytest

from headrace.transfer.throughput import Throughput


def test_nothing_is_known_before_a_frame_was_taken() -> None:
    throughput = Throughput()
    throughput.sent(1.0)
    assert throughput.bytes_s == 0.0


def test_the_time_between_transfers_does_not_count() -> None:
    """Frames of 100 bytes that take half a second each, and long waits for a prompt between them."""
    throughput = Throughput()
    for number in range(40):
        throughput.sent(100.0 * number)
        throughput.back(100, 100.0 * number + 0.5)
    assert throughput.bytes_s == pytest.approx(200.0)


def test_frames_under_way_together_share_the_time() -> None:
    throughput = Throughput()
    for _ in range(4):
        throughput.sent(0.0)
    for number in range(4):
        throughput.back(100, 0.25 * (number + 1))
    assert throughput.bytes_s == pytest.approx(400.0)


def test_a_frame_that_was_not_taken_says_nothing() -> None:
    throughput = Throughput()
    throughput.sent(0.0)
    throughput.back(100, 1.0)
    throughput.sent(5.0)
    throughput.back(100, None)
    throughput.sent(50.0)
    throughput.back(100, 51.0)
    assert throughput.bytes_s == pytest.approx(100.0)


def test_the_newest_count_most() -> None:
    throughput, now = Throughput(), 0.0
    for seconds in (10.0, *[0.1] * 200):
        throughput.sent(now)
        now += seconds
        throughput.back(100, now)
    assert 900.0 < throughput.bytes_s <= 1000.0
