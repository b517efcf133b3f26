"""Peers that fall silent, by the kernel's own means, and hosts that run out of descriptors."""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from link_drive import OpenLinks, buffer, carry, drive, frame, settled
from link_sockets import Seen, at_rest, silence, tcp_sockets

from headrace.transfer.data_address import DataAddress
from headrace.transfer.link import Link, Receipt, ReceiptState

NOTICED_WITHIN_S = 25.0


@pytest.fixture
def opened() -> Iterator[Callable[[str], OpenLinks]]:
    made: list[OpenLinks] = []

    def make(kind: str) -> OpenLinks:
        made.append(OpenLinks(kind))
        return made[-1]

    yield make
    for links in made:
        links.close_all()


def _connected(before: frozenset[Seen]) -> set[Seen]:
    return {seen for seen in tcp_sockets() - before if not seen.listens}


def _call_themselves(wake: int, links: list[Link]) -> None:
    """To withdraw a receive UCX uses a connection to itself, which no silence between hosts concerns."""
    receipts = [link.post(frame(9), buffer(1000)) for link in links]
    for receipt in receipts:
        receipt.withdraw()
    drive(wake, settled(*receipts), *links)


def _offered(wake: int, left: Link, right: Link) -> Receipt:
    """A frame that the peer knows of and nobody takes, on a connection that worked."""
    carry(wake, left, right, frame(0))
    stuck = left.send(right.address, frame(1), buffer(1000))
    carry(wake, left, right, frame(2))
    return stuck


@pytest.mark.parametrize("kind", ["tcp", "ucx"])
def test_a_peer_that_fell_silent_is_given_up_and_reached_anew(
    opened: Callable[[str], OpenLinks], wake: int, kind: str
) -> None:
    links = opened(kind)
    pairs = [(links.open(), links.open()) for _ in range(2 if kind == "tcp" else 1)]
    every = [link for pair in pairs for link in pair]
    _call_themselves(wake, every)
    before = tcp_sockets()
    stuck = [_offered(wake, *pair) for pair in pairs]
    silenced = _connected(before)
    drive(wake, lambda: at_rest(silenced), *every)
    silence(silenced)
    if kind == "tcp":
        # On the second connection bytes are under way that nobody acknowledges.
        left, right = pairs[1]
        stuck.append(left.send(right.address, frame(3), buffer(1000)))
    # 1. It is noticed on connections that rest and on those that do not.
    drive(wake, settled(*stuck), *every, timeout_s=NOTICED_WITHIN_S, look_every_s=0.05)
    assert {receipt.state for receipt in stuck} == {ReceiptState.FAILED}
    # 2. Nothing half open stays on either side.
    drive(
        wake,
        lambda: not silenced & _connected(before),
        *every,
        timeout_s=NOTICED_WITHIN_S,
        look_every_s=0.05,
    )
    # 3. The way there is open again.
    for left, right in pairs:
        carry(wake, left, right, frame(4))


@contextmanager
def _no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["tcp", "nccl"])
def test_a_caller_that_cannot_be_let_in_keeps_nobody_busy(
    opened: Callable[[str], OpenLinks], wake: int, kind: str
) -> None:
    links = opened(kind)
    link, other = links.open(), links.open()
    link.progress(0.0, wake)
    place = DataAddress.parse(link.address)
    # 1. It waits outside, and the link waits with it.
    with socket.create_connection((place.host, place.port)):
        with _no_descriptors():
            cpu, began = time.thread_time(), time.monotonic()
            while time.monotonic() - began < 0.3:
                link.progress(0.3, wake)
            assert time.thread_time() - cpu < 0.1
        # 2. Once there is room, those who call are heard.
        carry(wake, other, link, frame(0))
