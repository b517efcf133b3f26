"""Noise: the generator's published vectors, values that must never change, and coordinates that alone decide."""

import numpy as np
import pytest
from fixtures import sampling_oracle as oracle
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.noise import Stream, gumbel, leaders
from headrace.engine.philox import philox


def _noise(seed: int, choice: int, position: int, tokens: np.ndarray) -> np.ndarray:
    return gumbel([Stream(seed, choice, position)], np.zeros(len(tokens), dtype=np.int64), tokens)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # Random123's known-answer file kat_vectors, philox4x32 with 10 rounds.
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter: str, key: str, words: str) -> None:
    expected = [int(word, 16) for word in words.split()]
    first, second, third, fourth = (np.array([int(word, 16)], dtype=np.uint64) for word in counter.split())
    low, high = (np.array([int(word, 16)], dtype=np.uint64) for word in key.split())
    assert philox((first, second, third, fourth), (low, high)).tolist() == [expected]
    assert oracle.philox([int(word, 16) for word in counter.split()], [int(word, 16) for word in key.split()]) == (
        expected
    )


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 6), min_size=1, max_size=20))
def test_philox_of_many_counters_and_keys_is_the_scalar_one(cases: list[tuple[int, ...]]) -> None:
    first, second, third, fourth, low, high = np.array(cases, dtype=np.uint64).T
    expected = [oracle.philox(list(case[:4]), list(case[4:])) for case in cases]
    assert philox((first, second, third, fourth), (low, high)).tolist() == expected


@pytest.mark.parametrize(
    ("stream", "noise"),
    [
        # A seeded answer must stay what it was when it was first given.
        ((0, 0, 0), [0.08482025111138775, 2.061661254644034, 1.181182895287568, 3.570159770728027, 2.8233506805667075]),
        ((7, 0, 1), [-0.5305982299602294, -0.66503430257530, 3.2758440079893263, -0.36360746357991, 0.27875138728224]),
        (
            (7, 1, 0),
            [0.35223179181689473, -0.56633625970679, -0.1546501047522177, 2.1242749593081247, 3.09318616920946],
        ),
        ((-1, 0, 0), [0.21895313677155, -0.91127157093923, 0.7451549483639506, -0.8273530022455103, 0.02648110147981]),
        ((2**40 + 5, 3, 1000), [-0.4597366681374, -0.0224675858543, -0.39867582962940, 0.66322492306, -0.22118792121]),
    ],
)
def test_noise_is_what_it_always_was(stream: tuple[int, int, int], noise: list[float]) -> None:
    assert _noise(*stream, np.array([0, 1, 2, 4, 49151])) == pytest.approx(noise, abs=1e-10)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 2**20), st.integers(0, 2**18))
def test_noise_is_its_definition(seed: int, choice: int, position: int, token: int) -> None:
    found = _noise(seed, choice, position, np.array([token]))[0]
    assert found == pytest.approx(oracle.gumbel(seed, choice, position, token), rel=1e-12)


def test_noise_of_a_token_depends_on_nothing_but_its_coordinates() -> None:
    everyone = _noise(5, 1, 9, np.arange(1000))
    some = np.array([0, 3, 4, 5, 11, 998])
    assert _noise(5, 1, 9, some).tolist() == everyone[some].tolist()
    for other in (_noise(6, 1, 9, some), _noise(5, 2, 9, some), _noise(5, 1, 8, some), _noise(5 + 2**32, 1, 9, some)):
        assert not np.isclose(other, everyone[some]).any()


def test_noise_of_many_streams_at_once_is_bit_equal_to_each_alone() -> None:
    random = np.random.default_rng(0)
    streams = [Stream(int(random.integers(-(2**62), 2**62)), row % 3, row * 7) for row in range(40)]
    owner = np.sort(random.integers(0, len(streams), 5000))
    tokens = random.integers(0, 2**17, 5000)
    together = gumbel(streams, owner, tokens)
    for row, one in enumerate(streams):
        alone = _noise(one.seed, one.choice, one.position, tokens[owner == row])
        assert alone.tolist() == together[owner == row].tolist()


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 9.0])
@pytest.mark.parametrize("size", [1, 6, 9001])
def test_the_winner_is_among_the_leaders(spread: float, size: int) -> None:
    tokens = np.arange(size)
    for seed in range(60):
        scores = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
        scores -= scores.max()
        few = leaders(Stream(seed, 0, 3), scores)
        assert int((scores.astype(np.float64) + _noise(seed, 0, 3, tokens)).argmax()) in few
        assert len(few) < 20


def test_the_winner_is_among_the_leaders_of_the_coldest_scores() -> None:
    scores = np.full(5000, -np.inf, dtype=np.float32)
    scores[1234] = 0.0
    assert leaders(Stream(1, 0, 0), scores).tolist() == [1234]
