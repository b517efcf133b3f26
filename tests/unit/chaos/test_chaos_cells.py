"""The fault matrix: what it holds, what a filter leaves of it, and that the small part of it has something of all."""

from collections.abc import Callable
from itertools import groupby

import pytest

from headrace.chaos.cells import (
    CONTROL,
    FRAMES,
    LINKS,
    MESSAGE_FAULTS,
    MESSAGES,
    PHASES,
    PROCESS_FAULTS,
    WIRE_FAULTS,
    WORKERS,
    Cell,
    Fault,
    Filter,
    Moment,
    Target,
    ci_subset,
    matrix,
    select,
)


def test_the_matrix_has_every_combination_and_none_twice() -> None:
    cells = matrix()
    assert len(cells) >= 500
    assert len({cell.id for cell in cells}) == len(cells)
    struck = {(cell.target, cell.fault, cell.moment) for cell in cells if cell.target is not Target.WIRE}
    assert struck == {(t, f, p) for t in (*WORKERS, *CONTROL) for f in PROCESS_FAULTS for p in PHASES}
    befallen = {(cell.fault, cell.moment, cell.link) for cell in cells if cell.target is Target.WIRE}
    frames = {(fault, frame, link) for fault in WIRE_FAULTS for frame in FRAMES for link in LINKS}
    assert befallen == frames | {(fault, message, "tcp") for fault in MESSAGE_FAULTS for message in MESSAGES}
    on_both = {(cell.target, cell.fault, cell.moment) for cell in cells if cell.link == "ucx"}
    assert on_both == {
        (cell.target, cell.fault, cell.moment) for cell in cells if cell.link == "tcp" and not cell.proxied
    }


@pytest.mark.parametrize("cells", [matrix, ci_subset])
def test_cells_of_one_cluster_follow_one_another(cells: Callable[[], tuple[Cell, ...]]) -> None:
    clusters = [key for key, _ in groupby(cells(), key=lambda cell: (cell.link, cell.proxied))]
    assert clusters == [("ucx", False), ("tcp", False), ("tcp", True)]


def test_nobody_behind_a_proxy_is_parted() -> None:
    assert all(cell.target is Target.WIRE for cell in matrix() if cell.proxied)


def test_the_small_part_is_of_the_matrix_and_has_every_value_of_every_axis() -> None:
    small = ci_subset()
    assert len(small) <= 32
    assert set(small) <= set(matrix())
    assert {cell.target for cell in small} == set(Target)
    assert {cell.fault for cell in small} == set(Fault)
    assert {cell.moment for cell in small} == set(Moment)
    assert {cell.link for cell in small} == set(LINKS)
    struck = [(cell.target, cell.fault) for cell in small if cell.target is not Target.WIRE]
    assert sorted(struck, key=str) == sorted(((t, f) for t in (*WORKERS, *CONTROL) for f in PROCESS_FAULTS), key=str)


def test_a_filter_asks_for_values_of_each_axis() -> None:
    wanted = Filter(target=("decode", "redis"), fault=("kill",), moment=("mid-decode",), link=("tcp",), seed=(1,))
    assert [cell.id for cell in select(matrix(), wanted)] == [
        "decode.kill.mid-decode.tcp.1",
        "redis.kill.mid-decode.tcp.1",
    ]
    assert select(matrix(), Filter()) == matrix()
    assert select(matrix(), Filter(target=("redis",), moment=("unit",))) == ()


def test_a_limit_takes_cells_from_all_over() -> None:
    few = select(matrix(), Filter(), limit=20)
    assert len(few) == 20
    assert {cell.link for cell in few} == set(LINKS)
    assert len({cell.target for cell in few}) > 3
    assert select(matrix(), Filter(link=("tcp",)), limit=10_000) == select(matrix(), Filter(link=("tcp",)))
