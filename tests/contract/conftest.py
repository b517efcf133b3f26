"""What the Link and Carrier suites are played on: a wake, peers over every link, desks that a test moves by hand."""

import os
from collections.abc import Callable, Iterator

import pytest
from carrier_desk import Clock, Desk
from carrier_pair import Pair, pairs_of_peers

from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions


@pytest.fixture
def wake() -> Iterator[int]:
    """What links ring when there is something to do: an eventfd."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    """Makes pairs, over whichever link a test names."""
    with pairs_of_peers() as make:
        yield make


@pytest.fixture
def clock() -> Clock:
    """Of both desks."""
    return Clock()


@pytest.fixture
def desk_options() -> TransferOptions:
    """Of both desks. A module whose desks have others has a fixture of its own by this name."""
    return TransferOptions()


@pytest.fixture
def desks(clock: Clock, desk_options: TransferOptions) -> Iterator[tuple[Desk, Desk]]:
    """Prefill and decode."""
    board = Switchboard()
    made = Desk(board, clock, desk_options, 1), Desk(board, clock, desk_options, 0)
    yield made
    for desk in made:
        desk.close()
