"""Paged attention against itself: a query has the same bits alone, in company, in chunks and wherever its pages lie."""

from dataclasses import replace

import pytest
import torch
from attention_case import ALL_SPLITS_AT_ONCE, SPLIT_AFTER_SPLIT, Case, make_case

pytestmark = pytest.mark.usefixtures("exact_products")

SPANS = ((16, 1), (20, 9), (-1, 1), (0, 4), (47, 1))
# (sequence, its first row, the row behind its last)
CUTS = ((0, 0, 1), (1, 0, 9), (1, 3, 4), (1, 4, 9), (3, 0, 4), (3, 3, 4), (4, 0, 1))
KINDS = pytest.mark.parametrize(
    ("dtype", "window", "softcap"),
    [(torch.float32, 0, 0.0), (torch.bfloat16, 0, 0.0), (torch.float32, 11, 5.0)],
    ids=["float32", "bfloat16", "window and cap"],
)


def _case(device: torch.device, dtype: torch.dtype, window: int = 0, softcap: float = 0.0) -> Case:
    return make_case(SPANS, device, group=2, dtype=dtype, window=window, softcap=softcap, padding=3)


@KINDS
def test_alone_and_in_chunks(dtype: torch.dtype, window: int, softcap: float, device: torch.device) -> None:
    case = _case(device, dtype, window, softcap)
    together = case.run(16)
    for index, begin, end in CUTS:
        rows = case.rows(index)
        expected = together[rows][begin:end]
        assert torch.equal(case.part(index, begin, end).run(16), expected)


@KINDS
def test_split_after_split_and_all_at_once(
    dtype: torch.dtype, window: int, softcap: float, device: torch.device
) -> None:
    case = _case(device, dtype, window, softcap)
    with_parts = case.run(16, scratch_bytes=ALL_SPLITS_AT_ONCE)
    assert torch.equal(case.run(16, scratch_bytes=SPLIT_AFTER_SPLIT), with_parts)


def test_the_size_of_splits_is_felt(device: torch.device) -> None:
    """Else the tests of equal bits would prove nothing."""
    case = _case(device, torch.float32)
    assert not torch.equal(case.run(16), case.run(32))


def test_wherever_the_pages_lie(device: torch.device) -> None:
    case = _case(device, torch.float32)
    places = torch.randperm(len(case.pages), generator=torch.Generator().manual_seed(1)).to(device)
    moved = torch.empty_like(case.pages)
    moved[places] = case.pages
    known = case.table < len(places)
    table = torch.where(known, places[torch.where(known, case.table, 0)].int(), case.table)
    assert torch.equal(replace(case, pages=moved, table=table).run(), case.run())
