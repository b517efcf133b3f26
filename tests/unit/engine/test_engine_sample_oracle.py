"""The sampler against plain Python over random requests, and rows that must not know of each other."""

import numpy as np
import pytest
from fixtures import sampling_oracle as oracle
from fixtures.sampling import draw_of, sample, token
from fixtures.sampling_oracle import Known
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.engine.runner import Draw
from headrace.engine.sample import Sampler

SIZE = 12
STOPS = frozenset({2, 9})
IDS = st.integers(0, SIZE + 1)  # some name no token


def _params() -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_p=st.sampled_from([1.0, 0.95, 0.7, 0.2]),
        top_k=st.sampled_from([0, 1, 3, 8, 100]),
        min_p=st.sampled_from([0.0, 0.01, 0.3]),
        presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -1.5]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -0.3]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.6]),
        logit_bias=st.lists(st.tuples(IDS, st.floats(-100, 100)), max_size=4).map(tuple),
        allowed_token_ids=st.none() | st.lists(IDS, min_size=1, max_size=9).map(tuple),
        bad_word_ids=st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=6).map(tuple),
        min_tokens=st.integers(0, 6),
        seed=st.integers(-(2**63), 2**63 - 1),
        stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
        ignore_eos=st.booleans(),
    )


KNOWN = st.builds(
    Known,
    prompt=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=8).map(tuple),
    generated=st.lists(st.integers(0, SIZE - 1), max_size=8).map(tuple),
    choice=st.integers(0, 7),
)
LOGITS = st.lists(
    st.integers(-12, 12).map(lambda one: one / 4) | st.floats(-20, 20, width=32), min_size=SIZE, max_size=SIZE
)


def _assume_clear(values: list[float], sampling: SamplingParams) -> None:
    """Not where rounding decides: a share that min_p or top_p cuts at, but for equal logits, to within 1e-6."""
    if sampling.greedy:
        return
    weights = np.exp((np.array(values) - max(values)) / sampling.temperature)
    assume(np.abs(weights - sampling.min_p).min() > 1e-6)
    order = sorted((weight for weight in weights if weight >= sampling.min_p), reverse=True)[: sampling.top_k or None]
    assume(np.abs(np.cumsum(order) / np.sum(order) - sampling.top_p)[:-1].min(initial=1.0) > 1e-6)


@settings(max_examples=250)
@given(LOGITS, _params(), KNOWN)
def test_any_request_draws_what_plain_python_draws(logits: list[float], sampling: SamplingParams, known: Known) -> None:
    values = oracle.edited([float(np.float32(one)) for one in logits], sampling, STOPS, known)
    (outcome,) = sample([logits], [draw_of(sampling, known)], STOPS)
    if max(values) == oracle.MASKED:
        assert isinstance(outcome, InvalidRequest)
        return
    _assume_clear(values, sampling)
    assert token(outcome) == oracle.token_of(oracle.law(values, sampling), sampling, known)


def _random_params(random: np.random.Generator, size: int) -> SamplingParams:
    def some(chance: float) -> bool:
        return bool(random.random() < chance)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, size, count).tolist())

    return SamplingParams(
        temperature=float(random.choice([0.0, 0.5, 1.0, 1.6])),
        top_p=float(random.choice([1.0, 0.9, 0.3])),
        top_k=int(random.choice([0, 0, 5, 40, 1000])),
        min_p=float(random.choice([0.0, 0.0, 0.05])),
        presence_penalty=float(random.choice([0.0, 0.5])),
        frequency_penalty=float(random.choice([0.0, 0.3])),
        repetition_penalty=float(random.choice([1.0, 1.1])),
        logit_bias=tuple(zip(ids(5), random.uniform(-5, 5, 5).tolist(), strict=True)) if some(0.3) else (),
        allowed_token_ids=ids(200) if some(0.2) else None,
        bad_word_ids=((1,), (2, 3), ids(3)) if some(0.3) else (),
        min_tokens=int(random.choice([0, 50])),
        seed=int(random.integers(-(2**62), 2**62)),
        stop_token_ids=ids(2),
        logprobs=int(random.integers(0, 6)) if some(0.4) else None,
    )


def _crowd(seed: int, size: int, count: int) -> tuple[np.ndarray, list[Draw]]:
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((count, size)) * random.choice([0.5, 3.0, 8.0], (count, 1))).astype(np.float32)
    draws = []
    for row in range(count):
        prompt, generated = random.integers(0, size, 60), random.integers(0, size, 40)
        known = Known(tuple(prompt.tolist()), tuple(generated.tolist()), row % 4)
        draws.append(draw_of(_random_params(random, size), known))
    rows[3, 7] = np.nan
    rows[5, 1] = np.inf
    return rows, draws


@pytest.mark.parametrize("size", [301, 5000, 20_011])
def test_a_row_is_bit_equal_in_any_company(size: int) -> None:
    """Alone, in every order, in random subsets and in fresh samplers: the same tokens and logprobs, to the bit."""
    random = np.random.default_rng(size)
    rows, draws = _crowd(size, size, 24)
    sampler = Sampler(Vocabulary(size, STOPS))
    alone = [repr(sampler.sample(rows[row : row + 1].copy(), [draw])[0]) for row, draw in enumerate(draws)]
    assert sum("not finite" in one for one in alone) == 2
    for turn in range(12):
        some = random.permutation(len(draws))[: int(random.integers(1, len(draws) + 1))]
        used = sampler if turn % 2 else Sampler(Vocabulary(size, STOPS))
        found = used.sample(rows[some], [draws[row] for row in some])
        assert [repr(one) for one in found] == [alone[row] for row in some]


def test_rows_that_are_cut_off_a_wider_matrix_are_edited_too() -> None:
    wide = np.zeros((2, 20), dtype=np.float32)
    draws = [draw_of(SamplingParams(temperature=0.0, logit_bias=((row + 4, 1.0),))) for row in range(2)]
    assert [token(one) for one in Sampler(Vocabulary(12, STOPS)).sample(wide[:, :12], draws)] == [4, 5]


def test_rules_follow_a_sequence_and_its_parameters() -> None:
    """The rules are kept by history: another sequence, or other parameters on the same one, get their own."""
    sampler = Sampler(Vocabulary(4, frozenset()))
    first = draw_of(SamplingParams(temperature=0.0, allowed_token_ids=(2,)))
    other = Draw(SamplingParams(temperature=0.0, allowed_token_ids=(3,)), 0, first.history)
    plain = draw_of(SamplingParams(temperature=0.0))
    for draw, expected in ((first, 2), (first, 2), (other, 3), (first, 2), (plain, 0)):
        assert token(sampler.sample(np.zeros((1, 4), dtype=np.float32), [draw])[0]) == expected
