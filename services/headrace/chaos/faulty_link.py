"""FaultyLink: a link that damages, delays, loses or withholds the one frame it is told to, and carries all others.

Owns what becomes of that frame, and its receipt until the link below has it. Who is aimed at is `aim`'s. It keeps the
fence: a sender's buffer is read until its receipt is settled, and what must be read later or changed is a copy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.chaos.aim import Aim, HeldJob
from headrace.chaos.damaged import damaged
from headrace.chaos.messages import Damage, FrameKind, Phase, WireFault
from headrace.transfer.link import END_UNIT, SENT_TWICE, FrameId, Link, Receipt, ReceiptState
from headrace.transfer.wire import END_FRAME_BYTES, HEADER_BYTES, EndStatus

_NEVER = float("inf")
# How often an End that is withheld is looked at: whoever releases it cannot wake the link.
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A frame that its sender gave away and the link below has not got. due: when it leaves; NEVER for a lost one.

    held: leaves when that is over. overtaken: leaves right behind the next one to the same peer.
    """

    address: str
    frame: FrameId
    buffer: memoryview
    receipt: Receipt
    due: float
    held: HeldJob | None = None
    overtaken: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """A frame that the link below has under a receipt of its own. taken: to be called once the peer took it."""

    receipt: Receipt
    below: Receipt
    taken: Callable[[], None] | None = None


class FaultyLink:
    """Implements Link over another one. address: what it calls itself; peers that use it must get here somehow."""

    def __init__(self, link: Link, aim: Aim, address: str = "") -> None:
        self._link = link
        self._aim = aim
        self._address = address or link.address
        self._kept: list[_Kept] = []
        self._given: list[_Given] = []
        self._settled_early = False

    @property
    def address(self) -> str:
        return self._address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        return self._link.post(frame, buffer)

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        if self._is_sending(address, frame):
            return self._refused(SENT_TWICE)
        overtaken = [kept for kept in self._kept if kept.overtaken and kept.address == address]
        receipt = self._withhold(address, frame, buffer) or self._strike(address, frame, buffer)
        if receipt is None:
            receipt = self._link.send(address, frame, buffer)
        for kept in overtaken:
            self._pass_on(kept)
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._pass_on_due()
        timeout_s, self._settled_early = (0.0 if self._settled_early else min(timeout_s, self._next_s())), False
        self._link.progress(timeout_s, wake_fd)
        self._settle()
        self._settled_early = False

    def close(self) -> None:
        for kept in list(self._kept):
            self._fail(kept, "the link was closed")
        self._link.close()
        self._settle()

    def _is_sending(self, address: str, frame: FrameId) -> bool:
        """Whether it is kept here. What the link below has, that one knows of."""
        return any((kept.address, kept.frame) == (address, frame) for kept in self._kept)

    def _refused(self, reason: str) -> Receipt:
        receipt = Receipt(self._withdraw)
        receipt.settle(ReceiptState.FAILED, reason)
        self._settled_early = True
        return receipt

    def _withhold(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt | None:
        """Keep the End of a complete transfer back that a hold is aimed at."""
        if not _is_complete_end(frame, buffer):
            return None
        key = self._aim.carried(frame.transfer)
        held = None if key is None else self._aim.take(Phase.BEFORE_COMMIT, key)
        if held is None:
            return None
        return self._keep(_Kept(address, frame, buffer, Receipt(self._withdraw), held.ends_at, held=held))

    def _strike(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt | None:
        """Do to the frame what a wire fault that is aimed at it says."""
        fault = self._aim.strike(_kind(frame, buffer), frame.transfer)
        if fault is None:
            return None
        receipt = Receipt(self._withdraw)
        if fault.kind is Damage.DUPLICATED:
            self._send_twice(address, frame, buffer, receipt=receipt, fault=fault)
            return receipt
        self._aim.struck(fault, frame)
        if fault.kind is Damage.SWALLOWED:
            receipt.settle(ReceiptState.DONE)
            self._settled_early = True
        elif fault.kind in _LATE:
            due = _NEVER if fault.kind is Damage.LOST else time.monotonic() + fault.seconds
            overtaken = fault.kind is Damage.REORDERED
            self._keep(_Kept(address, frame, buffer, receipt, due, overtaken=overtaken))
        else:
            self._give(receipt, self._link.send(address, frame, damaged(fault.kind, buffer)))
        return receipt

    def _send_twice(
        self, address: str, frame: FrameId, buffer: memoryview, *, receipt: Receipt, fault: WireFault
    ) -> None:
        """The second one has the same id, and leaves when the peer took the first: nobody waits for it any more."""
        copy = memoryview(bytearray(buffer))

        def again() -> None:
            self._link.send(address, frame, copy)
            self._aim.struck(fault, frame)

        self._give(receipt, self._link.send(address, frame, buffer), taken=again)

    def _keep(self, kept: _Kept) -> Receipt:
        self._kept.append(kept)
        return kept.receipt

    def _give(self, receipt: Receipt, below: Receipt, taken: Callable[[], None] | None = None) -> None:
        self._given.append(_Given(receipt, below, taken))
        self._settled_early |= not below.pending

    def _pass_on_due(self) -> None:
        now = time.monotonic()
        for kept in list(self._kept):
            if kept.due <= now or (kept.held is not None and kept.held.over):
                self._pass_on(kept)

    def _pass_on(self, kept: _Kept) -> None:
        self._let_go(kept)
        self._give(kept.receipt, self._link.send(kept.address, kept.frame, kept.buffer))

    def _fail(self, kept: _Kept, reason: str) -> None:
        self._let_go(kept)
        kept.receipt.settle(ReceiptState.FAILED, reason)
        self._settled_early = True

    def _let_go(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        if kept.held is not None:
            self._aim.let_go(kept.held)

    def _settle(self) -> None:
        """Hand on what became of frames that the link below has."""
        for given in [given for given in self._given if not given.below.pending]:
            self._given.remove(given)
            given.receipt.settle(given.below.state, given.below.reason)
            self._settled_early = True
            if given.taken is not None and given.below.state is ReceiptState.DONE:
                given.taken()

    def _next_s(self) -> float:
        """How long nothing leaves by itself."""
        if any(kept.held is not None for kept in self._kept):
            return _LOOK_S
        return max(0.0, min((kept.due for kept in self._kept), default=_NEVER) - time.monotonic())

    def _withdraw(self, receipt: Receipt) -> None:
        for kept in list(self._kept):
            if kept.receipt is receipt:
                self._fail(kept, "withdrawn")
                return
        for given in list(self._given):
            if given.receipt is receipt:
                given.below.withdraw()
        self._settle()


_LATE = frozenset({Damage.DELAYED, Damage.REORDERED, Damage.LOST})


def _is_complete_end(frame: FrameId, buffer: memoryview) -> bool:
    """The status is the first byte of an End's payload."""
    whole = frame.unit == END_UNIT and len(buffer) == END_FRAME_BYTES
    return whole and buffer[HEADER_BYTES] == EndStatus.COMPLETE.value


def _kind(frame: FrameId, buffer: memoryview) -> FrameKind:
    if not buffer:
        return FrameKind.MEET
    return FrameKind.END if frame.unit == END_UNIT else FrameKind.UNIT
