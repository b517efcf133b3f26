"""What two workers' pages may differ in, and the sentence for what they may not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.layout import DTYPE_BYTES, Descriptor, KvLayout, difference, layout_difference

LAYOUT = KvLayout(layers=2, kv_heads=4, head_dim=8, block_tokens=16, dtype="float32")
HERE = Descriptor(b"d" * 16, LAYOUT, b"w" * 16, "kv plain")

layouts = st.builds(
    KvLayout,
    layers=st.sampled_from([2, 3]),
    kv_heads=st.sampled_from([1, 4]),
    head_dim=st.sampled_from([8, 16]),
    block_tokens=st.sampled_from([16, 32, 48]),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    scale_bytes=st.sampled_from([0, 0, 4]),
)
descriptors = st.builds(
    Descriptor,
    digest=st.sampled_from([b"d" * 16, b"e" * 16]),
    layout=layouts,
    weights=st.sampled_from([b"", b"w" * 16, b"x" * 16]),
    recipe=st.sampled_from(["", "kv plain", "kv plain, int8"]),
)


@given(descriptors, descriptors)
def test_there_is_a_difference_if_and_only_if_the_fits_differ(one: Descriptor, other: Descriptor) -> None:
    assert (difference(one, other) == "") == (one.fit == other.fit)
    assert (difference(other, one) == "") == (one.fit == other.fit)


@given(layouts, layouts)
def test_layouts_differ_in_all_but_page_size(one: KvLayout, other: KvLayout) -> None:
    same = replace(one, block_tokens=other.block_tokens) == other
    alike = same and (one.block_tokens == other.block_tokens or not one.scale_bytes)
    assert (layout_difference(one, other) == "") == alike


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"digest": b"e" * 16, "weights": b"\x12\xab" * 8}, "their weights are 777777777777 and 12ab12ab12ab"),
        ({"digest": b"e" * 16, "recipe": "kv plain, int8"}, "are made as 'kv plain' and 'kv plain, int8'"),
        ({"digest": b"e" * 16, "recipe": ""}, "their model digests are 646464646464 and 656565656565"),
        ({"layout": replace(LAYOUT, dtype="bfloat16")}, "their KV pages are of float32 and bfloat16"),
        ({"layout": replace(LAYOUT, layers=3)}, "they have 2 and 3 layers"),
        ({"layout": replace(LAYOUT, kv_heads=8)}, "they have 4 and 8 KV heads"),
        ({"layout": replace(LAYOUT, head_dim=16)}, "their heads have 8 and 16 dimensions"),
        ({"layout": replace(LAYOUT, scale_bytes=4)}, "their scales take 0 and 4 bytes a head"),
    ],
    ids=str,
)
def test_the_clause_names_what_differs(changes: dict[str, object], clause: str) -> None:
    assert clause in difference(HERE, replace(HERE, **changes))  # type: ignore[arg-type]


def test_pages_with_scales_are_of_one_size() -> None:
    scaled = replace(LAYOUT, dtype="int8", scale_bytes=4)
    assert layout_difference(scaled, scaled) == ""
    clause = layout_difference(scaled, replace(scaled, block_tokens=32))
    assert clause == "their pages have 16 and 32 tokens, and pages with scales are not cut"


def test_the_dtype_is_named_where_the_digest_differs_because_of_it() -> None:
    other = Descriptor(b"e" * 16, replace(LAYOUT, dtype="bfloat16"), HERE.weights, HERE.recipe)
    assert difference(HERE, other) == "their KV pages are of float32 and bfloat16"


def test_scales_stand_behind_each_heads_keys_and_values() -> None:
    scaled = KvLayout(layers=3, kv_heads=4, head_dim=8, block_tokens=16, dtype="int8", scale_bytes=64)
    assert scaled.page_bytes == 4 * 2 * (16 * 8 + 64)
    # A rank's heads are one run of the page, scales and all.
    assert scaled.page_bytes % 4 == 0
    assert scaled.page_bytes // 4 == replace(scaled, kv_heads=1).page_bytes
