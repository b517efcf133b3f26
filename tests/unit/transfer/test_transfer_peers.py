"""The shares of peers: any order of sends and settlements leaves the counts right, and one frame always goes."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.transfer.peers import NEVER, Patience, Peers

ADDRESSES = ["a", "b", "c"]
STEPS = st.lists(st.tuples(st.sampled_from(ADDRESSES), st.integers(0, 40), st.booleans(), st.booleans()), max_size=60)


@given(STEPS, st.integers(0, 4), st.integers(1, 100))
def test_no_peer_has_more_than_its_share(
    steps: list[tuple[str, int, bool, bool]], most_slabs: int, most_bytes: int
) -> None:
    peers = Peers(most_slabs, most_bytes)
    under_way: dict[str, list[int]] = {address: [] for address in ADDRESSES}
    turns = [0]
    for now, (address, nbytes, settle, taken) in enumerate(steps):
        frames = under_way[address]
        if settle and frames:
            peers.back(address, frames.pop(0), float(now) if taken else None)
        elif not nbytes or peers.may_send(address, nbytes):
            frames.append(nbytes)
            turns.append(peers.sent(address, nbytes))
        assert peers.nbytes == sum(map(sum, under_way.values()))
        in_slabs = [size for size in frames if size]
        assert len(in_slabs) <= max(1, most_slabs)
        assert sum(in_slabs) <= most_bytes or len(in_slabs) == 1
        if not in_slabs:
            assert peers.may_send(address, most_bytes + 1)
        if not frames:
            assert peers.heard_at(address) == -NEVER
        elif settle and taken:
            assert peers.heard_at(address) <= now
    assert turns == sorted(set(turns))


@given(st.floats(0, 100), st.floats(0, 100))
def test_patience_lasts_as_long_as_it_says(waiting_since: float, heard_after: float) -> None:
    patience = Patience(silent_s=5.0, short_s=30.0)
    ends_at = patience.ends_at(waiting_since, waiting_since + heard_after)
    assert waiting_since + 5.0 <= ends_at <= waiting_since + 30.0
    assert patience.ends_at(waiting_since, -NEVER) == waiting_since + 5.0
    assert patience.farewell_ends_at(waiting_since, waiting_since, waiting_since + heard_after) == ends_at
