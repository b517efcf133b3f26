"""From times to rates and fractions, by examples worked out by hand."""

import pytest
from fixtures.tiny_model import CONFIG

from headrace.bench.arithmetic import Shape, StepWork, matrices_of
from headrace.bench.ceilings import Ceilings, higher
from headrace.bench.drive import Timed
from headrace.bench.report import Case, Limits, row_of, shown, spent

SHAPE = Shape.of(CONFIG, matrices_of(CONFIG, 2), kv_bytes=2)
# Two pieces of a prompt of 12 tokens.
PROMPT = Timed(
    steps=(StepWork(((0, 8),), 0), StepWork(((8, 4),), 1)),
    seconds=(0.003, 0.001),
    spent={"linear": 0.001, "head": 0.0002, "rope": 0.0, "sampling": 0.0003},
    detailed_s=0.002,
)
BYTES = 122_880 + 2048 + 2048 + 122_880 + 38_400 + 3072 + 1024 + 1200
OPERATIONS = 2 * (12 * 61_440 + 19_200) + 2 * 78 * 256


def test_a_prompt_in_pieces() -> None:
    row = row_of(Case("prefill", 1, 12), PROMPT, SHAPE, Limits(1e9, 1e9))
    assert (row.name, row.steps, row.tokens) == ("prefill 12 in 2", 2, 6.0)
    assert row.ms == pytest.approx(2.0)
    assert row.tokens_per_s == pytest.approx(3000.0)
    assert row.bytes["total"] == BYTES / 2
    assert row.bytes["weights"] == 122_880 + 38_400 / 2
    assert row.operations == OPERATIONS / 2
    assert row.of_bandwidth == pytest.approx(BYTES / 0.004 / 1e9)
    assert row.of_products == pytest.approx(OPERATIONS / 0.004 / 1e9)


@pytest.mark.parametrize(("limits", "bound"), [(Limits(1e8, 1e10), "memory"), (Limits(1e10, 1e8), "products")])
def test_the_nearer_ceiling_is_named(limits: Limits, bound: str) -> None:
    assert row_of(Case("decode", 4, 64), PROMPT, SHAPE, limits).bound == bound


def test_what_no_clock_saw_is_pythons() -> None:
    shares = spent(PROMPT)
    assert list(shares) == ["linear", "python", "sampling", "head"]
    assert shares == pytest.approx({"linear": 1.0, "python": 0.5, "sampling": 0.3, "head": 0.2})


def test_products_in_integers_are_a_ceiling_only_of_integer_weights() -> None:
    ceilings = Ceilings(5.0, 6.0, {"torch float32": 20.0, "native bf16": 22.0, "native int8": 40.0})
    assert (ceilings.bandwidth, ceilings.product_rate(integer=False)) == (6.0, 22.0)
    assert ceilings.product_rate(integer=True) == 40.0


def test_of_two_measurements_the_better_counts() -> None:
    one, other = Ceilings(5.0, 6.0, {"a": 1.0, "b": 4.0}), Ceilings(7.0, 2.0, {"a": 3.0, "b": 2.0})
    assert higher(one, other) == Ceilings(7.0, 6.0, {"a": 3.0, "b": 4.0})


@pytest.mark.parametrize(
    ("number", "text"), [(0.0, "0.00"), (9.994, "9.99"), (9.996, "10.0"), (99.96, "100"), (12345.6, "12346")]
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert shown(number) == text
