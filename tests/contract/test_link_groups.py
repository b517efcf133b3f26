"""NcclLink's process groups leave nothing in the store where they met."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from link_drive import OpenLinks, carry, drive, frame
from torch.distributed import TCPStore

from headrace.transfer.data_address import DataAddress


@pytest.fixture
def links() -> Iterator[OpenLinks]:
    opened = OpenLinks("nccl")
    yield opened
    opened.close_all()


def test_a_group_that_is_over_leaves_nothing_in_the_store(links: OpenLinks, wake: int) -> None:
    right = links.open()
    place = DataAddress.parse(right.address)
    store = TCPStore(place.host, place.meeting, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
    empty = store.num_keys()
    for unit in range(2):
        left = links.open()
        carry(wake, left, right, frame(unit))
        assert store.num_keys() > empty
        links.close(left)
        drive(wake, lambda: store.num_keys() == empty, right, look_every_s=0.01)
