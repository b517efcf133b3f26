"""Waiting for file descriptors."""

import fcntl
import os
import time
from collections.abc import Iterator

import pytest

from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.readable import wait_readable

LEAST = 1500


@pytest.fixture
def high_event() -> Iterator[int]:
    """An eventfd whose number is beyond what `select` takes."""
    low = os.eventfd(0, os.EFD_NONBLOCK)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LEAST)
    os.close(low)
    yield high
    os.close(high)


def test_a_descriptor_of_any_number_wakes(high_event: int) -> None:
    assert wait_readable([high_event], 0.0) == frozenset()
    os.eventfd_write(high_event, 1)
    assert wait_readable([high_event], 10.0) == {high_event}


def test_the_wait_ends_with_its_time(high_event: int) -> None:
    began = time.monotonic()
    assert wait_readable([high_event], 0.02) == frozenset()
    assert time.monotonic() - began >= 0.02


def test_a_link_progresses_beside_many_descriptors(high_event: int) -> None:
    link = LoopbackLink(Switchboard())
    os.eventfd_write(high_event, 1)
    link.progress(10.0, high_event)
    link.close()
