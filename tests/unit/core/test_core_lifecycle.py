"""The table of legal moves."""

import pytest

from headrace.core.errors import InternalError
from headrace.core.lifecycle import ENDINGS, MOVES, Phase, advance


def test_every_phase_has_a_row_and_every_ending_is_final() -> None:
    assert set(MOVES) == set(Phase)
    assert {phase for phase, moves in MOVES.items() if not moves} == ENDINGS


@pytest.mark.parametrize("before", list(Phase))
@pytest.mark.parametrize("after", list(Phase))
def test_advance_takes_exactly_the_moves_of_the_table(before: Phase, after: Phase) -> None:
    if after in MOVES[before]:
        transition = advance(before, after, at=1.5)
        assert (transition.before, transition.after, transition.at) == (before, after, 1.5)
    else:
        with pytest.raises(InternalError, match=f"{before.value} to {after.value}"):
            advance(before, after, at=0.0)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in ENDINGS])
def test_every_living_phase_can_fail_and_be_cancelled(phase: Phase) -> None:
    assert {Phase.FAILED, Phase.CANCELLED} <= MOVES[phase]


def test_every_phase_is_reached_from_the_first() -> None:
    seen = {Phase.RECEIVED}
    for _ in Phase:
        seen |= {after for before in seen for after in MOVES[before]}
    assert seen == set(Phase)
