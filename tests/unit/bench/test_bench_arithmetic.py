"""Bytes and operations of steps, by examples worked out by hand."""

from dataclasses import replace

import pytest
from fixtures.tiny_model import CONFIG

from headrace.bench.arithmetic import Matrices, Shape, StepWork, Traffic, matrices_of, operations, traffic
from headrace.modelfiles.files import Experts

# Of a layer: queries and their way out 2 x 64 x 64, keys and values 2 x 64 x 32, feed-forward 3 x 64 x 96.
LAYER = 8192 + 4096 + 18_432
HEAD = 300 * 64
BF16 = matrices_of(CONFIG, 2)
SHAPE = Shape.of(CONFIG, BF16, kv_bytes=2)
# Of a token in a layer: key and value of 2 heads of 16 numbers of 2 bytes.
KV = 128
MIXED = StepWork(spans=((100, 1), (0, 8)), drawn=2)


def test_the_matrices_of_a_dense_model() -> None:
    assert Matrices(2 * LAYER, 4 * LAYER, HEAD, 2 * HEAD) == BF16
    assert matrices_of(CONFIG, 0.625).layer_bytes == 2 * LAYER * 5 // 8


def test_the_matrices_of_a_mixture() -> None:
    # One dense layer, and one with 8 experts of width 32 and a router.
    mixture = replace(CONFIG, experts=Experts(8, 2, 32, normalised=True, dense_layers=(0,)))
    expert = 3 * 64 * 32
    layers = 2 * (8192 + 4096) + 18_432 + 64 * 8
    assert matrices_of(mixture, 2) == Matrices(layers, 2 * layers, HEAD, 2 * HEAD, expert, 2 * expert, 8, 2)


def test_the_bytes_of_a_stream_and_a_prompt_in_one_step() -> None:
    assert traffic(SHAPE, MIXED) == Traffic(
        weights=4 * LAYER + 2 * HEAD,
        kv_read=(101 + 8) * 2 * KV,
        kv_written=(1 + 8) * 2 * KV,
        logits=2 * 300 * 4,
    )
    assert traffic(SHAPE, MIXED).total == 161_280 + 27_904 + 2304 + 2400


def test_the_operations_of_a_stream_and_a_prompt_in_one_step() -> None:
    products = 9 * 2 * LAYER + 2 * HEAD
    seen = 2 * (101 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8)
    # Of a query and a token that it sees: 4 heads of 16 numbers, with the key and with the value.
    assert operations(SHAPE, MIXED) == 2 * products + seen * 4 * 16 * 2 * 2 == 1_252_864


def test_a_step_without_logits_reads_no_head() -> None:
    step = StepWork(spans=((0, 8),), drawn=0)
    assert traffic(SHAPE, step) == Traffic(4 * LAYER, 8 * 2 * KV, 8 * 2 * KV, 0)
    assert operations(SHAPE, step) == 2 * 8 * 2 * LAYER + 2 * 36 * 256


@pytest.mark.parametrize(
    ("start", "count", "read", "seen"),
    [
        (100, 1, 24, 24),
        (0, 8, 8, 36),
        (20, 8, 28, 21 + 22 + 23 + 5 * 24),
        (40, 8, 31, 8 * 24),
    ],
)
def test_a_window_hides_what_is_behind_it(start: int, count: int, read: int, seen: int) -> None:
    narrow = replace(SHAPE, windows=(24,))
    step = StepWork(((start, count),), 0)
    assert traffic(narrow, step).kv_read == read * KV
    assert operations(narrow, step) - 2 * count * 2 * LAYER == seen * 256


def test_layers_with_and_without_a_window_add_up() -> None:
    both, step = replace(SHAPE, windows=(0, 24)), StepWork(((100, 1),), 1)
    assert traffic(both, step).kv_read == (101 + 24) * KV


@pytest.mark.parametrize(("tokens", "experts"), [(1, 2), (3, 6), (4, 8), (100, 8)])
def test_a_mixture_reads_as_many_experts_as_its_tokens_can_meet(tokens: int, experts: int) -> None:
    mixture = replace(SHAPE, matrices=Matrices(10, 20, 0, 0, 5, 10, experts=8, experts_per_token=2))
    step = StepWork(((0, tokens),), 0)
    assert traffic(mixture, step).weights == 20 + 10 * experts
    without = replace(SHAPE, matrices=Matrices(10, 20, 0, 0))
    assert operations(mixture, step) - operations(without, step) == 2 * tokens * 2 * 5
