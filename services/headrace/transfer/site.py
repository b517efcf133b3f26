"""What the transfers of one worker share: link, pages, slabs, limits, and where reports and counts go.

Owns nothing of a single transfer, and no thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.pages import PagePort
from headrace.core.ticket import UNIT_BLOCKS
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import Side, TransferReport
from headrace.transfer.link import Link
from headrace.transfer.slabs import SlabPool
from headrace.transfer.wire import HEADER_BYTES, Refusal


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Limits of one worker's transfers.

    window: units under way per transfer. unit_blocks: blocks of the largest unit a ticket may name.
    send_slabs, receive_slabs: each at least the number of transfers that run at once on that side, or some wait.
    drain_s: how long a sender waits for its peer after a transfer's end before it gives the peer up.
    linger_s: how long a receiver that gave up still listens for the sender's End.
    """

    window: int = 4
    unit_blocks: int = UNIT_BLOCKS
    send_slabs: int = 64
    receive_slabs: int = 64
    drain_s: float = 10.0
    linger_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Site:
    """One worker's side of every transfer. clock: monotonic seconds."""

    link: Link
    link_name: str
    pages: PagePort
    send_slabs: SlabPool
    receive_slabs: SlabPool
    options: TransferOptions
    metrics: TransferMetrics
    report: Callable[[TransferReport], None]
    clock: Callable[[], float]

    def frame_bytes(self, block_count: int) -> int:
        """Bytes of a unit's frame: header and payload."""
        return HEADER_BYTES + block_count * self.pages.layout.block_bytes

    def count_unit(self, side: Side, block_count: int) -> None:
        self.metrics.bytes.labels(side.value).inc(block_count * self.pages.layout.block_bytes)
        self.metrics.units.labels(side.value).inc()

    def count_refused(self, refusal: Refusal) -> None:
        self.metrics.refused.labels(refusal.value).inc()

    def close_books(self, report: TransferReport) -> None:
        """Count a transfer's end and hand its report on."""
        self.metrics.transfers.labels(report.side.value, report.status.value).inc()
        self.metrics.seconds.labels(report.side.value).observe(report.seconds)
        self.report(report)
