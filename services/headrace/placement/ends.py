"""What the end of a process was, and how long until its next life: decided from how it ended, without a clock."""

from dataclasses import dataclass

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 30.0
# From serving to the next start, for who leaves: whatever tells one to leave again and again does not keep us busy.
_PACE_S = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """left: it was told to leave and did, so it is no death. pause_s: until it is started again."""

    left: bool
    pause_s: float


class Ends:
    """The ends of one process, life after life."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S

    def judge(self, code: int, served_s: float | None) -> End:
        """served_s: how long it served; None if it never did. Code 0 of one that served says that it was told to leave.

        Deaths in a row are further and further apart.
        """
        if served_s is not None and served_s > _STEADY_S:
            self._pause_s = _FIRST_PAUSE_S
        if code == 0 and served_s is not None:
            return End(left=True, pause_s=max(0.0, _PACE_S - served_s))
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return End(left=False, pause_s=pause_s)
