"""The cut of a ticket into units."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.neutral import unit_blocks, wire_tokens
from headrace.transfer.plan import check_ticket, units

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32")
TICKET = Ticket(
    transfer=bytes(16),
    secret=bytes(16),
    job="j",
    attempt=1,
    source=WorkerRef("p", "1"),
    target=WorkerRef("d", "1"),
    model_digest=bytes(16),
    layout=LAYOUT,
    first_block=7,
    block_count=10,
    unit_blocks=4,
    link="tcp",
    address="127.0.0.1:1",
)


@given(st.integers(0, 500), st.integers(1, 9))
def test_units_tile_the_blocks_in_order(block_count: int, unit_blocks: int) -> None:
    cut = units(replace(TICKET, block_count=block_count, unit_blocks=unit_blocks))
    assert [unit.index for unit in cut] == list(range(len(cut)))
    covered = [block for unit in cut for block in range(unit.first_block, unit.end_block)]
    assert covered == list(range(block_count))
    assert all(unit.block_count == unit_blocks for unit in cut[:-1])
    assert all(1 <= unit.block_count <= unit_blocks for unit in cut)


SIZES = st.sampled_from((16, 32, 48, 64))


@given(SIZES, SIZES, st.integers(0, 40), st.integers(0, 200))
def test_between_two_page_sizes_units_begin_where_pages_of_both_do(
    here: int, there: int, first: int, count: int
) -> None:
    wire, step = wire_tokens(here, there), unit_blocks(here, there)
    ticket = replace(TICKET, first_block=first, block_count=count, unit_blocks=step, wire_tokens=wire)
    cut = units(ticket)
    assert [unit.index for unit in cut] == list(range(len(cut)))
    assert [block for unit in cut for block in range(unit.first_block, unit.end_block)] == list(range(count))
    assert all(1 <= unit.block_count <= step for unit in cut)
    for unit in cut[1:]:
        begins = (first + unit.first_block) * wire
        assert begins % here == begins % there == 0


@pytest.mark.parametrize(
    "change",
    [
        {"layout": replace(LAYOUT, dtype="bfloat16")},
        {"layout": replace(LAYOUT, scale_bytes=4)},
        {"wire_tokens": 8, "unit_blocks": 9},
        {"wire_tokens": 12},
        {"wire_tokens": 32},
        {"wire_tokens": 32, "layout": replace(LAYOUT, block_tokens=32)},
        {"wire_tokens": 16, "layout": replace(LAYOUT, block_tokens=24)},
        {"layout": replace(LAYOUT, kv_heads=2)},
        {"link": "ucx"},
        {"unit_blocks": 0},
        {"unit_blocks": 5},
        {"block_count": -1},
        {"block_count": 4 * 65_535 + 1},
        {"transfer": bytes(8)},
        {"secret": b""},
    ],
    ids=str,
)
def test_what_cannot_be_carried_is_refused(change: dict[str, object]) -> None:
    check_ticket(TICKET, LAYOUT, "tcp", 4)
    with pytest.raises(InvalidRequest):
        check_ticket(replace(TICKET, **change), LAYOUT, "tcp", 4)  # type: ignore[arg-type]


def test_pages_of_another_size_are_carried_in_wire_blocks() -> None:
    wide = replace(TICKET, layout=replace(LAYOUT, block_tokens=48), wire_tokens=16)
    check_ticket(wide, LAYOUT, "tcp", 4)
    check_ticket(wide, wide.layout, "tcp", 4)
    # What a slab holds is counted in its owner's pages.
    check_ticket(replace(wide, unit_blocks=12), wide.layout, "tcp", 4)
    with pytest.raises(InvalidRequest, match="A unit of 12 wire blocks is not between 1 and 4"):
        check_ticket(replace(wide, unit_blocks=12), LAYOUT, "tcp", 4)


def test_pages_with_scales_are_carried_whole_or_not_at_all() -> None:
    scaled = replace(LAYOUT, dtype="int8", scale_bytes=64)
    ticket = replace(TICKET, layout=scaled)
    check_ticket(ticket, scaled, "tcp", 4)
    for here, asked in (
        (scaled, replace(ticket, wire_tokens=8)),
        (replace(scaled, block_tokens=32), replace(ticket, wire_tokens=16)),
    ):
        with pytest.raises(InvalidRequest, match="pages with scales are not cut"):
            check_ticket(asked, here, "tcp", 4)
