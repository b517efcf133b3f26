"""Bias, penalties and masks: logits after them, against the definition and by hand; and rows that cannot be drawn."""

import math
from itertools import pairwise

import numpy as np
import pytest
from fixtures import sampling_oracle as oracle
from fixtures.sampling import assert_follows, draw_of, sample, token, tokens
from fixtures.sampling_oracle import Known

from headrace.core.errors import InternalError, InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.engine.edits import RowRules, edit
from headrace.engine.history import TokenHistory
from headrace.engine.rules import Rules

LOGITS = [2.0, -1.0, 0.5, 3.0, 0.0, -2.5]
KNOWN = Known(prompt=(0, 1, 1), generated=(3, 3, 4))
STOPS = frozenset({5})
MASKED = -math.inf


def _edited(sampling: SamplingParams, known: Known = KNOWN, logits: list[float] = LOGITS) -> list[float]:
    rows = np.array([logits], dtype=np.float32)
    history = TokenHistory([*known.prompt, *known.generated], len(known.prompt))
    edit(rows, [RowRules(0, Rules.of(sampling, Vocabulary(len(logits), STOPS)), history)])
    assert rows[0].tolist() == oracle.edited(logits, sampling, STOPS, known)
    found: list[float] = rows[0].tolist()
    return found


@pytest.mark.parametrize(
    ("sampling", "logits"),
    [
        ({"logit_bias": ((2, 1.5), (3, -100.0))}, [2.0, -1.0, 2.0, -97.0, 0.0, -2.5]),
        ({"logit_bias": ((2, 1.5), (2, 0.5), (99, 5.0))}, [2.0, -1.0, 2.5, 3.0, 0.0, -2.5]),
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.5, 1.5, 0.0, -2.5]),
        ({"repetition_penalty": 0.5}, [4.0, -0.5, 0.5, 6.0, 0.0, -2.5]),
        ({"frequency_penalty": 0.5}, [2.0, -1.0, 0.5, 2.0, -0.5, -2.5]),
        ({"presence_penalty": 0.5}, [2.0, -1.0, 0.5, 2.5, -0.5, -2.5]),
        ({"presence_penalty": -0.5, "frequency_penalty": -1.0}, [2.0, -1.0, 0.5, 5.5, 1.5, -2.5]),
        ({"repetition_penalty": 2.0, "presence_penalty": 1.0, "logit_bias": ((3, 1.0),)}, [1, -2, 0.5, 1, -1, -2.5]),
        ({"allowed_token_ids": (1, 4, 4, 99)}, [MASKED, -1.0, MASKED, MASKED, 0.0, MASKED]),
        ({"allowed_token_ids": (1, 4), "logit_bias": ((0, 100.0),)}, [MASKED, -1.0, MASKED, MASKED, 0.0, MASKED]),
        ({"bad_word_ids": ((0,), (2,), (99,))}, [MASKED, -1.0, MASKED, 3.0, 0.0, -2.5]),
        ({"min_tokens": 4}, [2.0, -1.0, 0.5, 3.0, 0.0, MASKED]),
        ({"min_tokens": 3}, LOGITS),
        ({"min_tokens": 4, "stop_token_ids": (2, 99)}, [2.0, -1.0, MASKED, 3.0, 0.0, MASKED]),
        ({"min_tokens": 4, "stop_token_ids": (2,), "ignore_eos": True}, [2.0, -1.0, MASKED, 3.0, 0.0, -2.5]),
    ],
)
def test_edited_logits_by_hand(sampling: dict[str, object], logits: list[float]) -> None:
    assert _edited(SamplingParams(**sampling)) == logits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "generated", "banned"),
    [
        ((3, 4, 2), (3, 3, 4), True),
        ((3, 4, 2), (3, 4, 3), False),
        ((4, 2), (4,), True),
        ((1, 4, 2), (4,), False),  # its head would begin in the prompt
        ((4, 2), (), False),
        ((3, 3, 4, 4, 2), (3, 3, 4), False),
        ((4, 99), (4,), False),
    ],
)
def test_a_bad_words_last_token_is_banned_after_its_head(
    word: tuple[int, ...], generated: tuple[int, ...], banned: bool
) -> None:
    known = Known((0, 1, 1), generated)
    edited = _edited(SamplingParams(bad_word_ids=(word, (5, 5, 5, 5, 5))), known)
    assert (edited[2] == MASKED) is banned
    assert sum(value == MASKED for value in edited) == banned


def test_a_bad_word_is_never_generated() -> None:
    sampling = SamplingParams(seed=5, bad_word_ids=((1, 2), (2, 2, 0), (3,)))
    history = TokenHistory([0], 1)
    for _ in range(600):
        draw = draw_of(sampling, Known((0,), tuple(history.tokens[1:])))
        history.tokens += tokens([[0.0, 1.0, 1.0, 0.5]], [draw])
    generated = tuple(history.tokens[1:])
    assert set(generated) == {0, 1, 2}
    assert (1, 2) not in pairwise(generated)
    assert (2, 2, 0) not in zip(generated, generated[1:], generated[2:], strict=False)


@pytest.mark.parametrize(
    ("sampling", "low"),
    [
        ({"repetition_penalty": 1e-300}, [3.4028234663852886e38, -0.0]),
        ({"repetition_penalty": 1e300}, [0.0, -3.4028234663852886e38]),
    ],
)
def test_what_goes_beyond_float32_stays_at_its_end(sampling: dict[str, float], low: list[float]) -> None:
    edited = _edited(SamplingParams(**sampling), Known((0, 1), ()))  # type: ignore[arg-type]
    assert edited[:2] == low


@pytest.mark.parametrize(
    "sampling",
    [
        {"logit_bias": ((0, 1.0), (3, -2.0), (5, 2.5))},
        {"repetition_penalty": 1.8},
        {"frequency_penalty": 0.9},
        {"presence_penalty": 1.5},
        {"allowed_token_ids": (0, 2, 4)},
        {"bad_word_ids": ((3,), (4, 0), (2, 4))},
        {"min_tokens": 5, "stop_token_ids": (3,)},
        {
            "temperature": 1.4,
            "logit_bias": ((5, 3.0),),
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.3,
            "presence_penalty": -0.2,
            "bad_word_ids": ((4, 1),),
            "top_k": 4,
            "min_p": 0.05,
        },
    ],
)
def test_draws_follow_the_law(sampling: dict[str, object]) -> None:
    draws = 1500
    params = [SamplingParams(seed=seed, **sampling) for seed in range(draws)]  # type: ignore[arg-type]
    law = oracle.law(oracle.edited(LOGITS, params[0], STOPS, KNOWN), params[0])
    drawn = tokens([LOGITS] * draws, [draw_of(one, KNOWN) for one in params], STOPS)
    assert_follows(np.bincount(drawn, minlength=len(LOGITS)), law)


def test_min_tokens_holds_stops_back_and_then_lets_them_come() -> None:
    greedy = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(2,))
    known = [Known((0,), (0,) * count) for count in range(5)]
    assert tokens([[0.0, 1.0, 9.0, 8.0]] * 5, [draw_of(greedy, one) for one in known], frozenset({3})) == [
        1,
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_p": 0.5, "logprobs": 2, "presence_penalty": 1.0}])
def test_logits_that_are_not_finite_fail_their_row_alone(bad: float, sampling: dict[str, float]) -> None:
    rows = np.tile(np.array(LOGITS, dtype=np.float32), (3, 1))
    rows[1, 4] = bad
    draws = [draw_of(SamplingParams(seed=row, **sampling), KNOWN) for row in range(3)]  # type: ignore[arg-type]
    outcomes = sample(rows, draws)
    assert isinstance(outcomes[1], InternalError)
    assert "not finite" in str(outcomes[1])
    assert [outcomes[0], outcomes[2]] == sample(rows[[0, 2]], [draws[0], draws[2]])


@pytest.mark.parametrize(
    "sampling",
    [
        {"allowed_token_ids": (1,), "bad_word_ids": ((1,),)},
        {"allowed_token_ids": (5,), "min_tokens": 4},
        {"allowed_token_ids": (77,)},
        {"bad_word_ids": tuple((token,) for token in range(6))},
        {"allowed_token_ids": (2,), "bad_word_ids": ((4, 2),), "temperature": 0.0},
    ],
)
def test_a_request_that_leaves_no_token_fails_alone_and_says_why(sampling: dict[str, object]) -> None:
    impossible = draw_of(SamplingParams(**sampling), KNOWN)  # type: ignore[arg-type]
    possible = draw_of(SamplingParams(temperature=0.0), KNOWN)
    failed, drawn = sample([LOGITS, LOGITS], [impossible, possible], STOPS)
    assert isinstance(failed, InvalidRequest)
    assert "allowed_token_ids" in str(failed)
    assert token(drawn) == 3
