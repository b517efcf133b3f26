"""Paged decode attention against its reference, and bit for bit against itself in other company."""

from dataclasses import replace

import pytest
import torch
from decode_case import BLOCK, DIM, NAN, Case, make_case
from torch import Tensor

from headrace_kernels.paged_decode import paged_decode

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}
EVERY_EDGE = (1, 15, 16, 17)


def assert_right(case: Case, split_tokens: int = 32) -> None:
    tolerance = TOLERANCE[case.queries.dtype]
    torch.testing.assert_close(case.run(split_tokens), case.expected(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("group", range(1, 9))
def test_every_ratio_of_query_to_kv_heads(group: int, device: torch.device) -> None:
    assert_right(make_case((33, 5), device, group=group))


def test_a_group_wider_than_a_tensor_core_tile(device: torch.device) -> None:
    assert_right(make_case((18,), device, group=17, kv_heads=1))


@pytest.mark.parametrize("lengths", [EVERY_EDGE, (31, 32, 33), (47, 48, 49), (63, 64)])
def test_page_boundaries(lengths: tuple[int, ...], device: torch.device) -> None:
    assert_right(make_case(lengths, device, group=3))


def test_one_token_is_its_own_value(device: torch.device) -> None:
    case = make_case((1,), device)
    page = int(case.table[0, 0])
    assert torch.equal(case.run()[0], case.pages[page, :, 1, 0])


@pytest.mark.parametrize("lengths", [(0,), (0, 0, 0), (0, 17, 0, 3), (20, 0)])
def test_padded_rows_are_zero_and_disturb_nobody(lengths: tuple[int, ...], device: torch.device) -> None:
    case = make_case(lengths, device, group=2)
    assert_right(case)
    assert not case.run()[case.lengths == 0].any()


def test_a_batch_of_no_rows(device: torch.device) -> None:
    assert make_case((), device).run().shape == (0, 2, DIM)


@pytest.mark.parametrize("split_tokens", [16, 32, 64, 128])
def test_split_sizes(split_tokens: int, device: torch.device) -> None:
    assert_right(make_case((64, 1, 40), device, group=2), split_tokens)


def test_the_usual_split_size(device: torch.device) -> None:
    case = make_case((40, 7), device, group=2)
    out = torch.full_like(case.queries, NAN)
    paged_decode(case.queries, case.pages, case.table, case.lengths, scale=DIM**-0.5, out=out)
    torch.testing.assert_close(out, case.expected(), rtol=1e-5, atol=1e-5)


def test_a_split_of_several_tiles(device: torch.device) -> None:
    assert_right(make_case((130,), device, kv_heads=1), 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    assert_right(make_case((33, 16), device, group=3, dtype=dtype))


@pytest.mark.parametrize(("dim", "block"), [(8, 16), (40, 16), (64, 32), (32, 48)])
def test_dims_and_blocks_that_are_no_powers_of_two(dim: int, block: int, device: torch.device) -> None:
    assert_right(make_case((50, 3), device, dim=dim, block=block))


def test_scores_of_any_size_stay_finite(device: torch.device) -> None:
    case = make_case((40, 17), device)
    assert_right(replace(case, queries=case.queries * 1e4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_is_bit_equal_alone_and_in_a_batch(dtype: torch.dtype, device: torch.device) -> None:
    case = make_case((17, 64, 0, 33), device, group=3, dtype=dtype)
    together = case.run(16)
    for row in (0, 1, 3):
        assert torch.equal(case.alone(row).run(16)[0], together[row])


def test_an_answer_is_bit_equal_wherever_its_pages_lie(device: torch.device) -> None:
    case = make_case((17, 64), device, group=2)
    places = torch.randperm(len(case.pages), generator=torch.Generator().manual_seed(1)).to(device)
    moved = torch.empty_like(case.pages)
    moved[places] = case.pages
    known = case.table < len(places)
    table = torch.where(known, places[torch.where(known, case.table, 0)].int(), case.table)
    assert torch.equal(replace(case, pages=moved, table=table).run(), case.run())


def test_strided_queries_tables_and_outputs(device: torch.device) -> None:
    case = make_case((17, 33), device, group=2)
    stacked = torch.full((2, 12, DIM), NAN, device=device)
    stacked[:, 3:7] = case.queries
    wide = torch.full((2, 2 * case.table.shape[1]), -(2**30), device=device, dtype=torch.int64)
    wide[:, : case.table.shape[1]] = case.table
    results = torch.full((2, 12, DIM), NAN, device=device)
    paged_decode(
        stacked[:, 3:7],
        case.pages,
        wide[:, : case.table.shape[1]],
        case.lengths.long(),
        scale=DIM**-0.5,
        out=results[:, 3:7],
        split_tokens=32,
    )
    assert torch.equal(results[:, 3:7], case.run())
    assert results[:, :3].isnan().all()
    assert results[:, 7:].isnan().all()


def test_a_nan_in_the_context_reaches_the_output(device: torch.device) -> None:
    case = make_case((20, 20), device)
    case.pages[int(case.table[0, 0]), 0, 1, 3, 5] = NAN
    out = case.run()
    assert out[0, 0, 5].isnan()
    assert not out[1].isnan().any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"queries": torch.zeros(2, 4)}, r"queries must be \[batch, heads, dim\]"),
        ({"queries": torch.zeros(2, 3, DIM)}, "3 heads are not a multiple of 2 KV heads"),
        ({"pages": torch.zeros(4, 2, 2, BLOCK, DIM + 1)}, r"pages must be \[num_blocks, kv_heads, 2, block_tokens, 32"),
        ({"pages": torch.zeros(4, 2, 2, DIM, BLOCK).mT}, "pages must be contiguous"),
        ({"pages": torch.zeros(4, 2, 2, BLOCK, DIM).double()}, "share one dtype"),
        ({"table": torch.zeros(3, 1, dtype=torch.int32)}, r"table must be \[2, max_blocks\]"),
        ({"table": torch.zeros(2, 1)}, "table must be int32 or int64"),
        ({"table": torch.zeros(2, 1, dtype=torch.int32, device="meta")}, "one device"),
        ({"lengths": torch.zeros(1, dtype=torch.int32)}, r"lengths must have shape \(2,\)"),
        ({"queries": torch.zeros(2, DIM, 2).mT}, "queries must be dense in its last dimension"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(change: dict[str, Tensor], sentence: str) -> None:
    case = make_case((3, 4), torch.device("cpu"))
    with pytest.raises(ValueError, match=sentence):
        replace(case, **change).run()


@pytest.mark.parametrize("split_tokens", [0, 8, 48])
def test_wrong_split_sizes_are_refused(split_tokens: int) -> None:
    with pytest.raises(ValueError, match="split_tokens must be a power of two"):
        make_case((3,), torch.device("cpu")).run(split_tokens)
