"""LocalLeg: a job whose prompt is read and whose answer is written here."""

from headrace.engine.engine import Admission
from headrace.worker.jobs import Leg, State


class LocalLeg(Leg):
    """add -> running -> ended by the engine. No transfer touches its pages."""

    def _check(self) -> None:
        """Whatever the engine takes can run here."""

    def _admitted(self, admission: Admission) -> None:
        self._move(State.RUNNING)
