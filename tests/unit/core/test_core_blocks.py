"""Chained block hashes: equal in every process, different wherever anything before differs."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.blocks import BLOCK_TOKENS, block_hash, blocks_for, chain, root_hash

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=100)


@given(tokens)
def test_chain_names_full_blocks_each_by_its_parent(ids: list[int]) -> None:
    hashes = chain(b"root", ids)
    assert len(hashes) == len(ids) // BLOCK_TOKENS
    parent = b"root"
    for index, value in enumerate(hashes):
        parent = block_hash(parent, ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
        assert value == parent
        assert len(value) == 16


@given(tokens, st.integers(0, 99))
def test_a_changed_token_changes_its_block_and_all_after(ids: list[int], where: int) -> None:
    if where >= len(ids):
        return
    other = [*ids[:where], ids[where] ^ 1, *ids[where + 1 :]]
    before, after = chain(b"r", ids), chain(b"r", other)
    block = where // BLOCK_TOKENS
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after[block:])


def test_root_depends_on_every_part_and_on_their_borders() -> None:
    roots = [root_hash(b"ab"), root_hash(b"a", b"b"), root_hash(b"a", b"", b"b"), root_hash(b"", b"ab"), root_hash(b"")]
    assert len(set(roots)) == len(roots)


def test_another_process_gives_the_same_hash() -> None:
    code = "from headrace.core.blocks import *; print(chain(root_hash(b'm', b'', b't'), range(40))[-1].hex())"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert out.stdout.strip() == chain(root_hash(b"m", b"", b"t"), range(40))[-1].hex()


def test_blocks_for_counts_a_partly_filled_block_whole() -> None:
    assert [blocks_for(count) for count in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
