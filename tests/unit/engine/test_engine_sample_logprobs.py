"""Logprobs: raw log-softmax, ranks and alternatives, of tokens drawn and of tokens known."""

import math

import numpy as np
import pytest
from fixtures.sampling import draw_of, sample
from fixtures.sampling_oracle import Known
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InternalError
from headrace.core.logprobs import TokenLogprob
from headrace.core.sampling import SamplingParams
from headrace.engine.logprobs import score, token_logprob
from headrace.engine.row_kernels import NumpyRows
from headrace.engine.runner import Drawn

ROWS = NumpyRows()


def _plain(row: list[float], token: int, count: int) -> TokenLogprob:
    best = max(row)
    total = best + math.log(math.fsum(math.exp(one - best) for one in row))
    order = sorted(range(len(row)), key=lambda one: (-row[one], one))
    top = tuple((one, row[one] - total) for one in order[:count])
    return TokenLogprob(token, row[token] - total, order.index(token) + 1, top)


def _assert_close(found: TokenLogprob, expected: TokenLogprob) -> None:
    assert (found.token, found.rank) == (expected.token, expected.rank)
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert [one for one, _ in found.top] == [one for one, _ in expected.top]
    assert [one for _, one in found.top] == pytest.approx([one for _, one in expected.top], abs=1e-5)


@given(
    st.lists(st.integers(-8, 8).map(float) | st.floats(-50, 50, width=32), min_size=1, max_size=70),
    st.integers(0, 20),
    st.data(),
)
def test_logprobs_are_log_softmax(row: list[float], count: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    _assert_close(token_logprob(np.array(row, dtype=np.float32), token, count, ROWS), _plain(row, token, count))


def test_logprobs_of_a_real_vocabulary() -> None:
    row = (np.random.default_rng(0).standard_normal(49_152) * 4).astype(np.float32)
    row[1000:1200] = row.max()  # equals: the lowest ids come first
    for token in (0, 1005, 49_151):
        _assert_close(token_logprob(row, token, 20, ROWS), _plain(row.tolist(), token, 20))
    assert math.fsum(math.exp(token_logprob(row, token, 0, ROWS).logprob) for token in range(0, 49_152, 97)) < 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_drawn_tokens_logprob_is_raw_whatever_sampling_did(temperature: float) -> None:
    row = [2.0, -1.0, 0.5, 3.0, 0.0, -2.5]
    known = Known((0, 1), (3, 3))
    sampling = SamplingParams(
        temperature=temperature, seed=3, top_k=2, logit_bias=((1, 9.0), (0, -2.0)), presence_penalty=2.0, logprobs=3,
        repetition_penalty=1.5, bad_word_ids=((3,),), allowed_token_ids=(0, 1, 2, 3),
    )  # fmt: skip
    (drawn,) = sample([row], [draw_of(sampling, known)])
    assert isinstance(drawn, Drawn)
    assert drawn.logprob is not None
    assert drawn.token == drawn.logprob.token
    _assert_close(drawn.logprob, _plain(row, drawn.logprob.token, 3))


def test_logprobs_come_to_those_who_ask() -> None:
    row = [1.0, 2.0, 3.0]
    params = [SamplingParams(temperature=0.0, logprobs=asked) for asked in (None, 0, 2)]
    silent, bare, two = sample([row] * 3, [draw_of(one) for one in params])
    assert silent == Drawn(2)
    assert isinstance(bare, Drawn)
    assert isinstance(two, Drawn)
    assert bare.logprob is not None
    assert two.logprob is not None
    assert bare.logprob.top == ()
    assert [token for token, _ in two.logprob.top] == [2, 1]
    assert two.logprob.logprob == two.logprob.top[0][1]


def test_scores_of_known_tokens_are_each_rows_own() -> None:
    rows = np.random.default_rng(1).standard_normal((5, 300)).astype(np.float32)
    tokens = [0, 299, 7, 7, 150]
    found = score(rows, tokens, 4, ROWS)
    assert found == [token_logprob(row, token, 4, ROWS) for row, token in zip(rows, tokens, strict=True)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_of_logits_that_are_not_finite_are_refused(bad: float) -> None:
    rows = np.zeros((3, 9), dtype=np.float32)
    rows[2, 4] = bad
    with pytest.raises(InternalError, match="not finite"):
        score(rows, [0, 1, 2], 0, ROWS)
