"""Blocks on the wire between pages of two sizes: token by token what went in comes out, and nothing else changes."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.layout import KvLayout
from headrace.core.ticket import UNIT_BLOCKS
from headrace.engine.page_memory import PageMemory
from headrace.transfer.neutral import unit_blocks, wire_blocks, wire_pages, wire_tokens

LAYOUT = KvLayout(layers=2, kv_heads=4, head_dim=2, block_tokens=16, dtype="bfloat16")
COUNT = 24
SIZES = (16, 32, 48, 64, 80, 128)
ends = st.tuples(st.sampled_from(SIZES), st.sampled_from([1, 2, 4]))


def memory(page: int, *, ranks: int = 1, seed: int = 0) -> PageMemory:
    made = PageMemory(replace(LAYOUT, block_tokens=page), COUNT, ranks=ranks)
    if seed:
        made.shares[:] = np.random.default_rng(seed).integers(1, 256, made.shares.shape, dtype=np.uint8)
    return made


def tokens(pages: PageMemory, ids: list[int]) -> npt.NDArray[np.uint8]:
    """What the pages hold of each token: [token, layer, kv head, K or V, bytes]."""
    layout = pages.layout
    buffer = bytearray(len(ids) * layout.block_bytes)
    pages.read(ids, memoryview(buffer))
    shape = (layout.layers, len(ids), layout.kv_heads, 2, layout.block_tokens, -1)
    each = np.frombuffer(buffer, np.uint8).reshape(shape).transpose(1, 4, 0, 2, 3, 5)
    return each.reshape(len(ids) * layout.block_tokens, *each.shape[2:])


@given(ends, ends, st.integers(1, 300), st.data())
def test_any_page_size_and_number_of_ranks_reads_what_any_other_wrote(
    sender: tuple[int, int], receiver: tuple[int, int], length: int, data: st.DataObject
) -> None:
    (here, ranks), (there, other_ranks) = sender, receiver
    # 1. A context in pages of both, the first of them resident at the receiver.
    wire, step = wire_tokens(here, there), data.draw(st.integers(1, unit_blocks(here, there)))
    ids = data.draw(st.permutations(range(COUNT)))
    sent, received = ids[: -(-length // here)], ids[: -(-length // there)]
    resident = there * data.draw(st.integers(0, (length - 1) // there))
    source, target = memory(here, ranks=ranks, seed=1), memory(there, ranks=other_ranks, seed=2)
    before = tokens(target, list(range(COUNT)))
    # 2. Its wire blocks travel, some at a time.
    first, end = resident // wire, -(-length // wire)
    reading, writing = wire_pages(source, wire), wire_pages(target, wire)
    whence = wire_blocks(tuple(sent), here // wire)[first:end]
    whither = wire_blocks(tuple(received), there // wire)[first:end]
    for at in range(0, len(whence), step):
        part = bytearray(len(whence[at : at + step]) * reading.layout.block_bytes)
        reading.read(whence[at : at + step], memoryview(part))
        writing.write(whither[at : at + step], memoryview(part))
    # 3. All of it is there, and what lay around it lies there still.
    arrived = tokens(target, received)
    assert np.array_equal(arrived[resident:length], tokens(source, sent)[resident:length])
    beyond = end * wire
    places = np.concatenate([np.arange(page * there, (page + 1) * there) for page in received])
    assert np.array_equal(arrived[:resident], before[places[:resident]])
    assert np.array_equal(arrived[beyond:], before[places[beyond:]])
    others = np.setdiff1d(np.arange(COUNT * there), places)
    assert np.array_equal(tokens(target, list(range(COUNT)))[others], before[others])


def test_pages_of_the_wires_own_size_are_themselves() -> None:
    pages, ids = memory(32), (5, 2, 9)
    assert wire_pages(pages, 32) is pages
    assert wire_blocks(ids, 1) is ids


@pytest.mark.parametrize("here", SIZES)
@pytest.mark.parametrize("there", SIZES)
def test_a_unit_fits_both_ends_and_is_whole_pages_where_it_can_be(here: int, there: int) -> None:
    wire, unit = wire_tokens(here, there), unit_blocks(here, there)
    assert (unit, wire) == (unit_blocks(there, here), wire_tokens(there, here))
    assert here % wire == there % wire == 0
    length, room = unit * wire, UNIT_BLOCKS * min(here, there)
    assert 0 < length <= room
    if any(whole % here == whole % there == 0 for whole in range(16, room + 1, 16)):
        assert length % here == length % there == 0
    if here == there:
        assert (wire, unit) == (here, UNIT_BLOCKS)


class Watched(PageMemory):
    """Counts the pages that are read."""

    reads = 0

    def read(self, blocks: object, into: memoryview) -> None:
        self.reads += len(blocks)  # type: ignore[arg-type]
        super().read(blocks, into)  # type: ignore[arg-type]


def test_whole_pages_are_written_without_being_read() -> None:
    pages = Watched(replace(LAYOUT, block_tokens=48), COUNT)
    wire = wire_pages(pages, 16)
    data = memoryview(bytearray(6 * wire.layout.block_bytes))
    wire.write(wire_blocks((3, 1), 3), data)
    assert pages.reads == 0
    wire.write(wire_blocks((3, 1), 3)[:4], data[: 4 * wire.layout.block_bytes])
    assert pages.reads == 2
