"""HolderTable against the plain definition of what it answers."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import WorkerRef
from headrace.prefix.holders import HolderTable, digest_of

REFS = tuple(WorkerRef(f"w{number}", "1") for number in range(4))


def block(number: int) -> bytes:
    return number.to_bytes(16, "little")


changes = st.lists(
    st.tuples(
        st.sampled_from(REFS),
        st.booleans(),
        st.frozensets(st.integers(0, 7)),
        st.frozensets(st.integers(0, 7)),
    ),
    max_size=20,
)


@given(changes=changes, prompt=st.lists(st.integers(0, 7), max_size=8, unique=True))
def test_it_answers_as_sets_would(
    changes: list[tuple[WorkerRef, bool, frozenset[int], frozenset[int]]], prompt: list[int]
) -> None:
    table = HolderTable()
    model: dict[WorkerRef, set[bytes]] = {}
    digests: dict[WorkerRef, int] = {}
    for ref, leaves, stored, evicted in changes:
        if leaves:
            table.remove(ref)
            model.pop(ref, None)
            digests.pop(ref, None)
            continue
        change = table.change(ref, map(block, stored), map(block, evicted))
        digests[ref] = digests.get(ref, 0) ^ change
        model[ref] = (model.get(ref, set()) - set(map(block, evicted))) | set(map(block, stored))
    hashes = [block(number) for number in prompt]
    reach = {ref: len(list(takewhile(held.__contains__, hashes))) for ref, held in model.items()}
    assert table.match(hashes) == {ref: blocks for ref, blocks in reach.items() if blocks}
    assert table.refs == model.keys()
    assert {ref: table.held(ref) for ref in model} == model
    assert {ref: table.count(ref) for ref in model} == {ref: len(held) for ref, held in model.items()}
    assert digests == {ref: digest_of(held) for ref, held in model.items()}


def test_a_digest_is_the_xor_of_big_endian_numbers() -> None:
    hashes = [bytes(range(16)), bytes(range(100, 116)), bytes([255] * 16)]
    expected = 0
    for one in hashes:
        expected ^= int.from_bytes(one, "big")
    assert digest_of(hashes) == expected
    assert digest_of(()) == 0


def test_workers_may_be_more_than_a_machine_word_has_bits() -> None:
    table = HolderTable()
    refs = [WorkerRef(f"w{number}", "1") for number in range(100)]
    for depth, ref in enumerate(refs, start=1):
        table.change(ref, map(block, range(depth)), ())
    for ref in refs[::2]:
        table.remove(ref)
    hashes = [block(number) for number in range(100)]
    assert table.match(hashes) == {ref: depth for depth, ref in enumerate(refs, start=1) if depth % 2 == 0}
