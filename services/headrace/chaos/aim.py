"""Aim: what a worker was told to do to one request, until it is done.

Owns what is armed and who is held. Its engine's thread, its transfer thread and the one that hears orders share it. It
knows no sockets, and neither what holding an engine means nor how a frame is damaged.
"""

import threading
import time
from collections.abc import Callable

from headrace.chaos.messages import (
    HOLD_BOUND_S,
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


class HeldJob:
    """A job that stands at a phase until it is released or `ends_at`, in monotonic seconds."""

    __slots__ = ("_released", "ends_at", "key", "phase")

    def __init__(self, phase: Phase, key: JobKey, bound_s: float) -> None:
        self.phase = phase
        self.key = key
        self.ends_at = time.monotonic() + bound_s
        self._released = threading.Event()

    @property
    def released(self) -> bool:
        return self._released.is_set()

    @property
    def over(self) -> bool:
        return self.released or time.monotonic() >= self.ends_at

    def release(self) -> None:
        self._released.set()

    def wait(self) -> None:
        """Block until it is over."""
        self._released.wait(max(0.0, self.ends_at - time.monotonic()))


class Aim:
    """One hold and one wire fault at most, each for once. All methods may be called on any thread.

    tell: takes the news, in their order, and neither blocks for long nor raises.
    """

    def __init__(self, tell: Callable[[News], None], bound_s: float = HOLD_BOUND_S) -> None:
        self._tell = tell
        self._bound_s = bound_s
        # News are told under the lock: what an order brings about is told after that the order was obeyed.
        self._lock = threading.Lock()
        self._hold: Hold | None = None
        self._fault: WireFault | None = None
        self._passed = 0
        self._held: set[HeldJob] = set()
        self._carried: dict[bytes, JobKey] = {}

    def arm(self, order: Hold | WireFault) -> None:
        with self._lock:
            if isinstance(order, Hold):
                self._hold = order
            else:
                self._fault, self._passed = order, 0
            self._tell(Obeyed())

    def release(self) -> None:
        """Let what is held go on."""
        with self._lock:
            self._release_all()
            self._tell(Obeyed())

    def disarm(self) -> None:
        """Forget everything, and let what is held go on."""
        with self._lock:
            self._hold = self._fault = None
            self._release_all()
            self._tell(Obeyed())

    def awaits(self, phase: Phase) -> bool:
        """Whether a hold at that phase is armed; cheap."""
        hold = self._hold
        return hold is not None and hold.phase is phase

    def take(self, phase: Phase, key: JobKey, count: int = 0) -> HeldJob | None:
        """The hold that `key` reached with `count` tokens at `phase`, if it is the one aimed at. Who takes it stops
        there until it is over, and then says so with `let_go`."""
        with self._lock:
            hold = self._hold
            if hold is None or hold.phase is not phase or count < hold.at:
                return None
            if not key.request.startswith(hold.request_prefix):
                return None
            self._hold = None
            held = HeldJob(phase, key, self._bound_s)
            self._held.add(held)
            self._tell(Held(key.request, key.attempt, phase))
            return held

    def let_go(self, held: HeldJob) -> None:
        with self._lock:
            self._held.discard(held)
            self._tell(LetGo(held.key.request, held.key.attempt, held.released))

    def strike(self, kind: FrameKind, transfer: bytes) -> WireFault | None:
        """What to do to a frame that is about to leave, if it is the one aimed at."""
        with self._lock:
            fault = self._fault
            if fault is None or fault.frame is not kind:
                return None
            key = self._carried.get(transfer)
            if fault.request_prefix and (key is None or not key.request.startswith(fault.request_prefix)):
                return None
            self._passed += 1
            if self._passed <= fault.nth:
                return None
            self._fault = None
            return fault

    def struck(self, fault: WireFault, frame: FrameId) -> None:
        """It was done."""
        with self._lock:
            self._tell(Struck(fault.kind, frame.transfer.hex(), frame.unit))

    def carries(self, transfer: bytes, key: JobKey) -> None:
        """From now on the frames of `transfer` are those of the job."""
        with self._lock:
            self._carried[transfer] = key

    def forget(self, transfer: bytes) -> None:
        with self._lock:
            self._carried.pop(transfer, None)

    def carried(self, transfer: bytes) -> JobKey | None:
        """Whose pages the transfer moves, if that job is here."""
        return self._carried.get(transfer)

    def _release_all(self) -> None:
        for held in self._held:
            held.release()
