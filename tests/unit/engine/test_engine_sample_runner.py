"""The runner of a model: what it draws, scores and reports of each span, over a model whose logits are known."""

from collections.abc import Sequence

import numpy as np
import pytest
from fixtures.sampling import NOTHING_KNOWN, draw_of
from fixtures.sampling_oracle import Known

from headrace.core.errors import InternalError, InvalidRequest
from headrace.core.layout import KvLayout
from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.engine import model_runner
from headrace.engine.logit_row import Logits
from headrace.engine.logprobs import token_logprob
from headrace.engine.model_runner import ModelRunner
from headrace.engine.page_memory import PageMemory
from headrace.engine.row_kernels import NumpyRows
from headrace.engine.runner import Drawn, Span
from headrace.engine.sample import Sampler

SIZE = 40
POISON = 39  # its state has logits that are not finite
STOP = 7
GREEDY = SamplingParams(temperature=0.0)


class TableModel:
    """See Model. A token's state is its id; the logits that follow it stand in a table."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
        self.table[POISON, 3] = np.nan
        self.most_rows = 0
        self.ids: list[int] = []

    def forward(self, spans: Sequence[Span]) -> None:
        self.ids = [token for span in spans for token in span.tokens[span.start : span.start + span.count]]

    def logits(self, rows: Sequence[int]) -> Logits:
        self.most_rows = max(self.most_rows, len(rows))
        return self.table[[self.ids[row] for row in rows]]


@pytest.fixture
def model() -> TableModel:
    return TableModel()


@pytest.fixture
def runner(model: TableModel) -> ModelRunner:
    layout = KvLayout(layers=1, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32")
    pages = PageMemory(layout, 40)
    return ModelRunner(model, pages, Sampler(Vocabulary(SIZE, frozenset({STOP}))))


def _span(tokens: list[int], start: int = 0, count: int | None = None, **asked: object) -> Span:
    draw = asked.get("draw")
    if isinstance(draw, SamplingParams):
        asked["draw"] = draw_of(draw, Known(tuple(tokens), ()))
    length = len(tokens) - start if count is None else count
    return Span(tokens, start, length, list(range(-(-(start + length) // 16))), **{"draw": None, **asked})  # type: ignore[arg-type]


def test_each_span_gets_its_own(runner: ModelRunner, model: TableModel) -> None:
    chunk, single, silent = (
        _span([1, 2, 3], draw=GREEDY),
        _span([4, 5], start=1, draw=GREEDY),
        _span([6, 8, 9], count=2),
    )
    best = model.table.argmax(axis=1)
    assert runner.run([chunk, silent, single]) == [Drawn(int(best[3])), Drawn(None), Drawn(int(best[5]))]


def test_min_tokens_knows_the_vocabularys_stops(runner: ModelRunner, model: TableModel) -> None:
    model.table[1, STOP] = 99.0
    held = SamplingParams(temperature=0.0, min_tokens=1)
    ignored = SamplingParams(temperature=0.0, min_tokens=1, ignore_eos=True)
    outcomes = runner.run([_span([1], draw=one) for one in (GREEDY, held, ignored)])
    assert [isinstance(one, Drawn) and one.token == STOP for one in outcomes] == [True, False, True]


@pytest.mark.parametrize(("start", "count"), [(0, 100), (0, 150), (40, 109), (149, 1), (148, 2)])
@pytest.mark.parametrize("drawn", [False, True])
def test_scores_are_those_of_the_tokens_that_follow(
    runner: ModelRunner, model: TableModel, start: int, count: int, drawn: bool
) -> None:
    tokens = np.random.default_rng(2).integers(0, POISON, 150).tolist()
    draw = GREEDY if drawn and start + count == len(tokens) else None
    (outcome,) = runner.run([_span(tokens, start, count, draw=draw, score=3)])
    assert isinstance(outcome, Drawn)
    known = range(start, min(start + count, len(tokens) - 1))
    rows = NumpyRows()
    expected = [token_logprob(model.table[tokens[place]], tokens[place + 1], 3, rows) for place in known]
    assert outcome.scored == tuple(expected)
    assert (outcome.token is None) is (draw is None)


def test_scores_come_in_pieces(runner: ModelRunner, model: TableModel) -> None:
    runner.run([_span([1] * 500, score=0)])
    assert model.most_rows == model_runner._SCORED_ROWS


def test_scores_do_not_depend_on_the_chunks(runner: ModelRunner) -> None:
    tokens = np.random.default_rng(4).integers(0, POISON, 200).tolist()
    (whole,) = runner.run([_span(tokens, score=5)])
    pieces = [runner.run([_span(tokens, start, min(33, 200 - start), score=5)])[0] for start in range(0, 200, 33)]
    assert isinstance(whole, Drawn)
    assert [one for piece in pieces if isinstance(piece, Drawn) for one in piece.scored] == list(whole.scored)


def test_what_is_not_finite_fails_its_span_alone(runner: ModelRunner) -> None:
    spans = [
        _span([1, POISON], draw=GREEDY),
        _span([1, POISON, 2], draw=GREEDY, score=1),
        _span([1, POISON, 2], draw=GREEDY),
        _span([1, 2], draw=SamplingParams(allowed_token_ids=(99,))),
        _span([1, 2], draw=SamplingParams(temperature=0.0, logprobs=1)),
    ]
    last, scored, passed, nothing, good = runner.run(spans)
    assert isinstance(last, InternalError)
    assert isinstance(scored, InternalError)
    assert isinstance(passed, Drawn)
    assert isinstance(nothing, InvalidRequest)
    assert [good] == runner.run(spans[-1:])


def test_positions_come_from_the_history() -> None:
    assert draw_of(GREEDY, Known((1, 2), (3,))).position == 1
    assert draw_of(GREEDY, NOTHING_KNOWN).position == 0
