"""The plan of a soak: the same for the same seed, with everything in it that can befall a cluster."""

from collections import Counter
from dataclasses import replace

import pytest

from headrace.chaos.members import NAMES
from headrace.chaos.mix import mix
from headrace.chaos.soak.plan import MORTAL, Deed, Shape, describe, plan

ASKS = [one.name for one in mix("m")]
SHAPE = Shape(seed=0, requests=5000, laps=12, asks=ASKS, partitions=True)
SHORT = replace(SHAPE, requests=200, laps=4)


def test_it_is_a_function_of_its_shape_alone() -> None:
    assert plan(SHAPE) == plan(replace(SHAPE))
    assert plan(SHAPE) != plan(replace(SHAPE, seed=1))


@pytest.mark.parametrize("seed", range(20))
def test_each_lap_has_requests_of_every_kind_and_some_that_are_left(seed: int) -> None:
    laps = plan(replace(SHAPE, seed=seed))
    assert [lap.number for lap in laps] == list(range(1, 13))
    assert sum(len(lap.turns) for lap in laps) >= 5000
    for lap in laps:
        assert {turn.ask for turn in lap.turns} == set(ASKS)
        assert {turn.door for turn in lap.turns} == {"gateway", "router-0", "router-1"}
        left = [turn.leave for turn in lap.turns if turn.leave is not None]
        assert 0.1 < len(left) / len(lap.turns) < 0.4
        assert len({turn.salt for turn in lap.turns}) > len(lap.turns) / 3
        assert max(Counter(turn.salt for turn in lap.turns).values()) > 10


@pytest.mark.parametrize("shape", [SHAPE, SHORT], ids=["whole", "short"])
@pytest.mark.parametrize("seed", range(20))
def test_every_deed_is_done_and_only_to_whom_it_may(seed: int, shape: Shape) -> None:
    laps = plan(replace(shape, seed=seed))
    strokes = [stroke for lap in laps for stroke in lap.strokes]
    assert {stroke.deed for stroke in strokes} == set(Deed)
    for lap in laps:
        assert lap.strokes
        assert all(0 <= stroke.at < len(lap.turns) * 0.8 for stroke in lap.strokes)
    for stroke in strokes:
        assert stroke.victim in NAMES
        assert stroke.victim in MORTAL or stroke.deed not in (Deed.KILL, Deed.DRAIN)
        assert bool(stroke.other) == (stroke.deed is Deed.PART)
        assert (stroke.fault is not None) == (stroke.deed is Deed.DAMAGE)
        assert (stroke.seconds > 0) == (stroke.deed in (Deed.FREEZE, Deed.PART))


def test_nobody_is_parted_where_that_cannot_be() -> None:
    strokes = [stroke for lap in plan(replace(SHAPE, partitions=False)) for stroke in lap.strokes]
    assert {stroke.deed for stroke in strokes} == set(Deed) - {Deed.PART}


def test_people_read_who_is_struck_how() -> None:
    lap = plan(SHAPE)[0]
    said = describe(lap)
    assert said.startswith("lap 1: 417 requests, ")
    assert all(stroke.words in said for stroke in lap.strokes)
    parted = next(stroke for stroke in lap.strokes if stroke.deed is Deed.PART)
    assert parted.words.startswith(f"part {parted.victim} from {parted.other} for ")
