"""What is judged to grow: each kind of leak is found, and nothing that only wavers, warms up or steps once."""

import random
from collections.abc import Callable, Sequence

import pytest

from headrace.chaos.soak.flat import Series, ends, risen, series, unjudged, warm_up
from headrace.chaos.soak.sample import COUNTS, HELD, MEMORY, THREADS, Sample

LAPS = 15
MIB = 2**20


def of(values: Sequence[float], measure: str = "fds", lives: int = 1, requests: int = 5000) -> tuple[str, ...]:
    return risen([Series("router-0", measure, tuple(int(value) for value in values), lives)], requests)


def laps(value: Callable[[int], float]) -> list[float]:
    return [value(lap) for lap in range(LAPS)]


@pytest.mark.parametrize("measure", COUNTS)
@pytest.mark.parametrize("every", [1, 2, 3], ids=lambda every: f"one in {every} laps")
def test_a_leak_of_one_thing_now_and_then_is_found(measure: str, every: int) -> None:
    (sentence,) = of(laps(lambda lap: 20 + lap // every), measure)
    assert sentence.startswith(f"router-0 has more {measure} lap by lap: 20, ")


def test_a_leak_is_found_though_the_count_wavers() -> None:
    dice = random.Random(1)
    assert of(laps(lambda lap: 20 + 2 * lap + dice.randrange(-1, 2)))


@pytest.mark.parametrize(
    "values",
    [
        (17, 18, 18, 18, 19, 19, 19, 20, 19, 20, 19, 21, 22, 21, 22),
        (27, 26, 26, 26, 27, 27, 27, 28, 28, 28, 29, 29, 29, 29, 29),
    ],
)
def test_a_connection_now_and_then_that_nobody_closes_is_found(values: tuple[int, ...]) -> None:
    assert of(values, "sockets")


@pytest.mark.parametrize("seed", range(50))
def test_what_only_wavers_is_flat(seed: int) -> None:
    dice = random.Random(seed)
    assert of(laps(lambda _: 20 + dice.randrange(4))) == ()


@pytest.mark.parametrize("at", range(LAPS))
def test_a_step_that_comes_once_is_flat(at: int) -> None:
    assert of(laps(lambda lap: 20 + 3 * (lap >= at))) == ()


def test_what_falls_is_flat() -> None:
    assert of(laps(lambda lap: 40 - lap)) == ()


def test_the_first_laps_only_warm_up() -> None:
    assert of(laps(lambda lap: min(20 + 5 * lap, 20 + 5 * warm_up(LAPS)))) == ()


@pytest.mark.parametrize("lives", [1, 9])
def test_memory_that_grows_with_every_lap_is_found(lives: int) -> None:
    (sentence,) = of(laps(lambda lap: (100 + 2 * lap) * MIB), MEMORY, lives)
    assert "100.0, 102.0, " in sentence
    assert sentence.endswith("128.0 MiB")


def test_memory_that_grows_less_than_its_bound_is_flat() -> None:
    assert of(laps(lambda lap: (100 + lap / 4) * MIB), MEMORY) == ()


def test_a_small_process_is_held_to_the_absolute_bound() -> None:
    assert of(laps(lambda lap: (5 + lap / 4) * MIB), MEMORY) == ()
    assert of(laps(lambda lap: (5 + lap) * MIB), MEMORY)


@pytest.mark.parametrize("seed", range(50))
def test_memory_of_lives_of_any_age_is_flat(seed: int) -> None:
    dice = random.Random(seed)
    assert of(laps(lambda _: (100 + dice.randrange(30)) * MIB), MEMORY, lives=9) == ()


@pytest.mark.parametrize("measure", HELD)
def test_what_is_held_at_rest_is_found_in_whichever_lap(measure: str) -> None:
    assert of([0] * LAPS, measure) == ()
    assert of([1, *[0] * (LAPS - 1)], measure)
    assert of([0, 1], measure)


@pytest.mark.parametrize("measure", [MEMORY, THREADS])
def test_what_fills_up_slowly_is_not_judged_by_a_short_soak(measure: str) -> None:
    assert of([size * MIB for size in (90, 100, 110, 120)], measure) == ()
    grows = laps(lambda lap: (100 + 4 * lap) * MIB)
    assert of(grows, measure, requests=2000) == ()
    assert of(grows, measure, requests=5000)


def test_a_short_soak_finds_what_grows_by_more_than_it_wavers() -> None:
    assert of([20, 22, 23, 24])
    assert of([20, 22, 22, 23]) == ()
    assert of([20, 22, 24, 23]) == ()


def test_too_few_laps_judge_no_trend() -> None:
    assert of([20, 40, 60]) == ()


@pytest.mark.parametrize("few", [1, 2, 3])
def test_it_is_said_of_too_few_laps_that_they_judge_no_trend(few: int) -> None:
    sentence = unjudged(few, 5000)
    assert sentence.startswith(f"So few laps ({few}) do not show whether anything grows")
    assert sentence.count(".") == 1


@pytest.mark.parametrize(("many", "requests"), [(4, 50000), (7, 50000), (15, 2000)])
def test_it_is_said_of_a_short_soak_what_it_does_not_judge(many: int, requests: int) -> None:
    assert unjudged(many, requests).startswith("Whether memory and threads grow is not judged")


@pytest.mark.parametrize(("many", "requests"), [(8, 4000), (15, 5000)])
def test_nothing_is_said_where_all_is_judged(many: int, requests: int) -> None:
    assert unjudged(many, requests) == ""


@pytest.mark.parametrize("requests", [100, 2000, 5000])
@pytest.mark.parametrize("many", range(1, 20))
def test_what_is_said_to_be_judged_is(many: int, requests: int) -> None:
    """Of a measure that grows beyond all bounds with every lap."""
    sentence = unjudged(many, requests)
    for measure in (MEMORY, *COUNTS):
        found = of([(100 + 50 * lap) * MIB for lap in range(many)], measure, requests=requests)
        assert bool(found) == (not sentence or (measure not in {MEMORY, THREADS} and sentence.startswith("Whether")))


def test_samples_become_a_series_a_process_by_name_and_measure() -> None:
    taken = [[Sample("decode-1", pid, {"fds": 20 + pid}), Sample("redis", 1, {})] for pid in (7, 7, 8)]
    del taken[1][1]
    assert series(taken) == (Series("decode-1", "fds", (27, 27, 28), lives=2),)


def test_people_see_what_it_is_early_and_late() -> None:
    assert ends(Series("router-0", "fds", tuple(range(15)))) == (6, 13)
    assert ends(Series("router-0", "fds", (3,))) == (3, 3)
