"""Deaths and leaves: which of them wait for the next life, and for how long."""

import pytest

from headrace.placement.ends import End, Ends


def left(pause_s: float = 0.0) -> End:
    return End(left=True, pause_s=pause_s)


def died(pause_s: float) -> End:
    return End(left=False, pause_s=pause_s)


@pytest.mark.parametrize(("code", "served_s"), [(-9, 2.0), (1, 0.1), (2, None), (0, None)])
def test_deaths_in_a_row_are_further_and_further_apart(code: int, served_s: float | None) -> None:
    """An end before it served is a death whatever the code."""
    ends = Ends()
    pauses = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0)
    assert [ends.judge(code, served_s) for _ in pauses] == [died(pause_s) for pause_s in pauses]


@pytest.mark.parametrize("code", [0, 1])
def test_who_served_for_long_has_a_first_death_again(code: int) -> None:
    ends = Ends()
    assert [ends.judge(1, 2.0) for _ in range(2)] == [died(0.2), died(0.4)]
    assert ends.judge(code, 31.0) == (died(0.2) if code else left())
    assert ends.judge(1, 2.0) == (died(0.4) if code else died(0.2))


def test_who_leaves_comes_back_at_once_however_often() -> None:
    ends = Ends()
    assert [ends.judge(0, 1.5) for _ in range(8)] == [left()] * 8
    assert ends.judge(1, 1.5) == died(0.2)


def test_who_leaves_at_once_again_and_again_is_started_once_a_second() -> None:
    ends = Ends()
    assert [ends.judge(0, served_s) for served_s in (0.0, 0.25, 0.0, 1.0)] == [left(1.0), left(0.75), left(1.0), left()]


def test_a_leave_makes_no_peace_with_deaths() -> None:
    """Who dies every few seconds and is told to leave in between is as sick as before."""
    ends = Ends()
    assert [ends.judge(code, 1.5) for code in (1, 0, 1, 0, 1)] == [died(0.2), left(), died(0.4), left(), died(0.8)]
