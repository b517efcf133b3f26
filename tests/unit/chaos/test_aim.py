"""Aim: who is hit, how often, and for how long."""

import threading
import time

import pytest

from headrace.chaos.aim import Aim
from headrace.chaos.messages import (
    Damage,
    FrameKind,
    Held,
    Hold,
    LetGo,
    News,
    Obeyed,
    Phase,
    Struck,
    WireFault,
)
from headrace.core.jobs import JobKey
from headrace.transfer.link import FrameId

MINE, OTHER = JobKey("cell-1.a", 3), JobKey("cell-2.a", 1)
TRANSFER, FOREIGN = b"t" * 16, b"f" * 16


@pytest.fixture
def told() -> list[News]:
    return []


@pytest.fixture
def aim(told: list[News]) -> Aim:
    return Aim(told.append)


def test_a_hold_takes_the_job_it_is_aimed_at_once(aim: Aim, told: list[News]) -> None:
    assert aim.take(Phase.BEFORE_GRANT, MINE) is None
    aim.arm(Hold(Phase.BEFORE_GRANT, "cell-1"))
    assert aim.awaits(Phase.BEFORE_GRANT)
    assert not aim.awaits(Phase.AFTER_GRANT)
    assert aim.take(Phase.BEFORE_GRANT, OTHER) is None
    assert aim.take(Phase.AFTER_GRANT, MINE) is None
    held = aim.take(Phase.BEFORE_GRANT, MINE)
    assert held is not None
    assert aim.take(Phase.BEFORE_GRANT, MINE) is None
    assert not held.over
    aim.release()
    assert held.over
    aim.let_go(held)
    assert told == [
        Obeyed(),
        Held("cell-1.a", 3, Phase.BEFORE_GRANT),
        Obeyed(),
        LetGo("cell-1.a", 3, True),
    ]


def test_a_hold_waits_until_there_are_tokens_enough(aim: Aim) -> None:
    aim.arm(Hold(Phase.MID_DECODE, "cell-1", at=5))
    assert aim.take(Phase.MID_DECODE, MINE, 4) is None
    assert aim.take(Phase.MID_DECODE, MINE, 6) is not None


def test_nothing_stands_longer_than_the_bound(told: list[News]) -> None:
    aim = Aim(told.append, bound_s=0.05)
    aim.arm(Hold(Phase.AFTER_COMMIT, ""))
    held = aim.take(Phase.AFTER_COMMIT, MINE)
    assert held is not None
    began = time.monotonic()
    held.wait()
    aim.let_go(held)
    assert 0.04 < time.monotonic() - began < 5.0
    assert told[-1] == LetGo("cell-1.a", 3, False)


def test_a_release_wakes_who_waits(aim: Aim) -> None:
    aim.arm(Hold(Phase.AFTER_COMMIT, ""))
    held = aim.take(Phase.AFTER_COMMIT, MINE)
    assert held is not None
    waiting = threading.Thread(target=held.wait)
    waiting.start()
    aim.release()
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_what_is_disarmed_strikes_nobody_and_holds_nobody(aim: Aim) -> None:
    aim.arm(Hold(Phase.AFTER_COMMIT, ""))
    held = aim.take(Phase.AFTER_COMMIT, MINE)
    aim.arm(Hold(Phase.AFTER_COMMIT, ""))
    aim.arm(WireFault(Damage.LOST))
    aim.disarm()
    assert held is not None
    assert held.over
    assert aim.take(Phase.AFTER_COMMIT, MINE) is None
    assert aim.strike(FrameKind.UNIT, TRANSFER) is None


def test_a_wire_fault_counts_the_frames_that_fit(aim: Aim, told: list[News]) -> None:
    fault = WireFault(Damage.LOST, FrameKind.UNIT, nth=1, request_prefix="cell-1")
    aim.carries(TRANSFER, MINE)
    aim.carries(FOREIGN, OTHER)
    aim.arm(fault)
    assert aim.strike(FrameKind.UNIT, TRANSFER) is None
    assert aim.strike(FrameKind.END, TRANSFER) is None
    assert aim.strike(FrameKind.UNIT, FOREIGN) is None
    assert aim.strike(FrameKind.UNIT, b"u" * 16) is None
    assert aim.strike(FrameKind.UNIT, TRANSFER) is fault
    assert aim.strike(FrameKind.UNIT, TRANSFER) is None
    aim.struck(fault, FrameId(TRANSFER, 1))
    assert told == [Obeyed(), Struck(Damage.LOST, TRANSFER.hex(), 1)]


def test_a_forgotten_transfer_is_nobodys(aim: Aim) -> None:
    aim.carries(TRANSFER, MINE)
    assert aim.carried(TRANSFER) == MINE
    aim.forget(TRANSFER)
    aim.forget(TRANSFER)
    aim.arm(WireFault(Damage.LOST, request_prefix="cell-1"))
    assert aim.carried(TRANSFER) is None
    assert aim.strike(FrameKind.UNIT, TRANSFER) is None
