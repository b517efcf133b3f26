"""Paged attention of mixed batches against its reference: shapes, windows, soft caps, paddings, layouts."""

from dataclasses import replace

import pytest
import torch
from attention_case import ALL_SPLITS_AT_ONCE, BLOCK, DIM, NAN, SPLIT_AFTER_SPLIT, Case, decoding, make_case
from torch import Tensor

from headrace_kernels.mixed_attention import mixed_attention

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}
MIXED = ((16, 1), (0, 5), (30, 4), (0, 1))
PASSES = pytest.mark.parametrize("scratch_bytes", [ALL_SPLITS_AT_ONCE, SPLIT_AFTER_SPLIT], ids=["parts", "whole"])


def assert_right(case: Case, split_tokens: int = 32, **options: int) -> None:
    tolerance = TOLERANCE[case.queries.dtype]
    out = case.run(split_tokens, **options)
    torch.testing.assert_close(out, case.expected(), rtol=tolerance, atol=tolerance)


@PASSES
@pytest.mark.parametrize("group", range(1, 9))
def test_every_ratio_of_query_to_kv_heads(group: int, scratch_bytes: int, device: torch.device) -> None:
    assert_right(make_case(((33, 1), (3, 4)), device, group=group, kv_heads=2), scratch_bytes=scratch_bytes)


def test_a_group_wider_than_a_tensor_core_tile(device: torch.device) -> None:
    assert_right(make_case(((16, 2),), device, group=17))


@pytest.mark.parametrize("lengths", [(1, 15, 16, 17), (31, 32, 33), (47, 48, 49), (63, 64)])
def test_contexts_that_end_at_page_boundaries(lengths: tuple[int, ...], device: torch.device) -> None:
    assert_right(make_case(decoding(*lengths), device, group=3))


@pytest.mark.parametrize("span", [(0, 15), (0, 16), (0, 17), (15, 2), (16, 16), (17, 31)])
def test_chunks_at_page_boundaries(span: tuple[int, int], device: torch.device) -> None:
    assert_right(make_case((span,), device, group=2), scratch_bytes=SPLIT_AFTER_SPLIT)


def test_one_token_is_its_own_value(device: torch.device) -> None:
    case = make_case(decoding(1), device)
    assert torch.equal(case.run()[0], case.pages[int(case.table[0, 0]), :, 1, 0])


@PASSES
def test_decode_rows_beside_chunks(scratch_bytes: int, device: torch.device) -> None:
    assert_right(make_case(MIXED, device, group=3, kv_heads=2), scratch_bytes=scratch_bytes)


@PASSES
def test_sequences_without_rows(scratch_bytes: int, device: torch.device) -> None:
    spans = ((4, 0), (20, 2), (0, 0), (0, 0), (33, 1), (9, 0))
    assert_right(make_case(spans, device, group=2), scratch_bytes=scratch_bytes)


@PASSES
@pytest.mark.parametrize("spans", [(), decoding(17), ((0, 3), (32, 1)), ((4, 0),)])
def test_rows_behind_the_last_sequence_are_zero(
    spans: tuple[tuple[int, int], ...], scratch_bytes: int, device: torch.device
) -> None:
    case = make_case(spans, device, group=2, padding=11)
    assert_right(case, scratch_bytes=scratch_bytes)
    assert not case.run(scratch_bytes=scratch_bytes)[-11:].any()


@PASSES
@pytest.mark.parametrize("lengths", [(0,), (0, 0, 0), (0, 17, 0, 33), (40, 0)])
def test_padded_sequences_are_zero_and_disturb_nobody(
    lengths: tuple[int, ...], scratch_bytes: int, device: torch.device
) -> None:
    """As in a captured graph, where a batch has rows of nobody."""
    case = make_case(decoding(*lengths), device, group=2)
    assert_right(case, scratch_bytes=scratch_bytes)
    assert not case.run()[case.positions < 0].any()


def test_a_batch_of_no_rows(device: torch.device) -> None:
    assert make_case((), device).run().shape == (0, 1, DIM)


@PASSES
@pytest.mark.parametrize("window", [1, 16, 17])
def test_windows(window: int, scratch_bytes: int, device: torch.device) -> None:
    """What nobody sees behind the window is NaN, in pages that the table does not name."""
    case = make_case((*decoding(1, 66), (30, 9)), device, group=2, window=window)
    assert_right(case, scratch_bytes=scratch_bytes)


def test_a_window_within_one_chunk_hides_its_first_tokens(device: torch.device) -> None:
    assert_right(make_case(((0, 40),), device, window=5), scratch_bytes=SPLIT_AFTER_SPLIT)


@pytest.mark.parametrize("window", [0, 12])
@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_soft_caps(softcap: float, window: int, device: torch.device) -> None:
    case = make_case(MIXED, device, group=2, softcap=softcap, window=window)
    assert_right(replace(case, queries=case.queries * 20))


@pytest.mark.parametrize("split_tokens", [16, 32, 64, 128])
def test_split_sizes(split_tokens: int, device: torch.device) -> None:
    assert_right(make_case(((63, 1), (0, 1), (35, 5)), device, group=2), split_tokens)


@pytest.mark.parametrize("tile_rows", [16, 32, 64])
def test_tile_sizes(tile_rows: int, device: torch.device) -> None:
    assert_right(make_case(((10, 1), (0, 23)), device, group=3, padding=2), tile_rows=tile_rows)


def test_the_usual_sizes(device: torch.device) -> None:
    case = make_case(((39, 1), (0, 7)), device, group=2)
    out = torch.full_like(case.queries, NAN)
    given = (case.queries, case.pages, case.table, case.first_row, case.positions)
    mixed_attention(*given, scale=DIM**-0.5, out=out)
    torch.testing.assert_close(out, case.expected(), rtol=1e-5, atol=1e-5)


@PASSES
def test_a_split_of_several_tiles(scratch_bytes: int, device: torch.device) -> None:
    assert_right(make_case(((129, 2),), device), 128, scratch_bytes=scratch_bytes)


@PASSES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, scratch_bytes: int, device: torch.device) -> None:
    assert_right(make_case(MIXED, device, group=3, dtype=dtype), scratch_bytes=scratch_bytes)


@pytest.mark.parametrize(("dim", "block"), [(8, 16), (40, 16), (64, 32), (32, 48), (16, 64), (24, 128)])
def test_dims_and_blocks_of_other_sizes(dim: int, block: int, device: torch.device) -> None:
    assert_right(make_case(((49, 1), (0, 3)), device, dim=dim, block=block))


def test_scores_of_any_size_stay_finite(device: torch.device) -> None:
    case = make_case(((39, 1), (12, 5)), device)
    assert_right(replace(case, queries=case.queries * 1e4))


def test_strided_queries_tables_and_outputs_and_wide_indices(device: torch.device) -> None:
    case = make_case(((16, 1), (31, 2)), device, group=2, kv_heads=2)
    stacked = torch.full((3, 12, DIM), NAN, device=device)
    stacked[:, 3:7] = case.queries
    wide = torch.full((2, 2 * case.table.shape[1]), -(2**30), device=device, dtype=torch.int64)
    wide[:, : case.table.shape[1]] = case.table
    results = torch.full((3, 12, DIM), NAN, device=device)
    mixed_attention(
        stacked[:, 3:7],
        case.pages,
        wide[:, : case.table.shape[1]],
        case.first_row.long(),
        case.positions.long(),
        scale=DIM**-0.5,
        out=results[:, 3:7],
        split_tokens=32,
    )
    assert torch.equal(results[:, 3:7], case.run())
    assert results[:, :3].isnan().all()
    assert results[:, 7:].isnan().all()


def test_a_nan_in_a_context_reaches_its_output_alone(device: torch.device) -> None:
    case = make_case(decoding(20, 20), device, kv_heads=2)
    case.pages[int(case.table[0, 0]), 0, 1, 3, 5] = NAN
    out = case.run()
    assert out[0, 0, 5].isnan()
    assert not out[1].isnan().any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"queries": torch.zeros(2, 4)}, r"queries must be \[row, head, dim\]"),
        ({"queries": torch.zeros(2, 3, DIM)}, "3 heads are not a multiple of 2 KV heads"),
        ({"pages": torch.zeros(4, 2, 2, BLOCK, DIM + 1)}, r"pages must be \[num_blocks, kv_heads, 2, block_tokens, 32"),
        ({"pages": torch.zeros(4, 2, 2, DIM, BLOCK).mT}, "pages must be contiguous"),
        ({"pages": torch.zeros(4, 2, 2, BLOCK, DIM).double()}, "share one dtype"),
        ({"table": torch.zeros(3, dtype=torch.int32)}, r"table must be \[sequence, max_blocks\]"),
        ({"table": torch.zeros(2, 1)}, "table must be int32 or int64"),
        ({"table": torch.zeros(2, 1, dtype=torch.int32, device="meta")}, "one device"),
        ({"first_row": torch.zeros(2, dtype=torch.int32)}, r"first_row must have shape \(3,\)"),
        ({"positions": torch.zeros(1, dtype=torch.int32)}, r"positions must have shape \(2,\)"),
        ({"queries": torch.zeros(2, DIM, 2).mT}, "queries must be dense in its last dimension"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(change: dict[str, Tensor], sentence: str) -> None:
    case = make_case(decoding(3, 4), torch.device("cpu"), kv_heads=2)
    with pytest.raises(ValueError, match=sentence):
        replace(case, **change).run()


@pytest.mark.parametrize("size", [0, 8, 48])
def test_wrong_sizes_are_refused(size: int) -> None:
    case = make_case(decoding(3), torch.device("cpu"))
    with pytest.raises(ValueError, match="split_tokens must be a power of two"):
        case.run(size)
    with pytest.raises(ValueError, match="tile_rows must be a power of two"):
        case.run(tile_rows=size)
