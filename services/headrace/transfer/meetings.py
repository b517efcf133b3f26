"""Meetings: calls to peers that nothing is sent to yet, so that a first transfer does not wait for its connection.

Owns the calls under way and what they are told. It knows no transfers, slabs or threads.
"""

import os
from dataclasses import dataclass

import structlog

from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import Told
from headrace.transfer.link import FrameId, Link, Receipt, ReceiptState

_log = structlog.get_logger()
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Call:
    address: str
    receipt: Receipt
    told: Told
    begun: float


class Meetings:
    """patience_s: how long a peer may take to answer; then what waits for it is in doubt anyway."""

    def __init__(self, link: Link, metrics: TransferMetrics, patience_s: float) -> None:
        self._link = link
        self._metrics = metrics
        self._patience_s = patience_s
        self._calls: list[_Call] = []

    @property
    def due(self) -> float:
        """When `step` must run next even if nothing happens, on the clock of `begin`."""
        return min(call.begun for call in self._calls) + self._patience_s if self._calls else float("inf")

    def begin(self, address: str, told: Told, now: float) -> None:
        receipt = self._link.send(address, FrameId(os.urandom(16), 0), _NOTHING)
        self._calls.append(_Call(address, receipt, told, now))

    def step(self, now: float) -> None:
        """Tell of those that were answered, that failed, or that took too long."""
        if not self._calls:
            return
        over = [call for call in self._calls if not call.receipt.pending or now >= call.begun + self._patience_s]
        if not over:
            return
        self._calls = [call for call in self._calls if call not in over]
        waiting = [call for call in over if call.receipt.pending]
        for call in over:
            self._tell(call, self._reason(call), now)
        # Last, for a link that fails at this is replaced, and who was called is to be told in any case.
        for call in waiting:
            call.receipt.withdraw()

    def end(self, reason: str, now: float) -> None:
        """Nobody is called any more."""
        calls, self._calls = self._calls, []
        for call in calls:
            self._tell(call, reason, now)

    def _reason(self, call: _Call) -> str:
        """Why there was no answer; "" if there was."""
        if call.receipt.pending:
            return f"{call.address} did not answer within {self._patience_s:g} s"
        return "" if call.receipt.state is ReceiptState.DONE else call.receipt.reason

    def _tell(self, call: _Call, reason: str, now: float) -> None:
        self._metrics.meetings.labels("failed" if reason else "met").inc()
        try:
            call.told(reason, now - call.begun)
        except Exception:
            _log.exception("meeting.nobody_told", address=call.address)
