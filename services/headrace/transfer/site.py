"""What the transfers of one worker share: link, pages, slabs, limits, and where reports and counts go.

Owns nothing of a single transfer, and no thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.core.pages import PagePort
from headrace.core.ticket import UNIT_BLOCKS, Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import TransferReport
from headrace.transfer.link import Link
from headrace.transfer.neutral import wire_pages
from headrace.transfer.peers import Patience, Peers
from headrace.transfer.slabs import SlabPool
from headrace.transfer.sources import Sources
from headrace.transfer.throughput import Throughput
from headrace.transfer.wire import Refusal


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Limits of one worker's transfers.

    window: units under way per transfer. unit_blocks: blocks of the largest unit a ticket may name.
    send_slabs, receive_slabs: each at least the number of transfers that run at once on that side, or some wait.
    peer_bytes: of units under way to one peer; a larger unit goes alone. One peer also has at most half of send_slabs.
    silent_s: a sender fails when its peer took nothing for so long, from anybody here: what is under way to one peer
    must get there in that time. short_s: or when the peer took other frames and not this transfer's.
    drain_s: how long a sender waits, after a transfer's end, for a peer that takes nothing before it gives the peer
    up. linger_s: how long a receiver that gave up still listens for the sender's End.
    beyond_s: a receiver waits for what was certainly sent, as what came behind it shows, so much longer than its sender
    does.
    quarantine_limit, quarantine_s: with more slabs in quarantine for longer the link is replaced.
    rebuilds: how often in an hour a link may be replaced; a worker that needs it more often is broken.
    """

    window: int = 4
    unit_blocks: int = UNIT_BLOCKS
    send_slabs: int = 64
    receive_slabs: int = 64
    peer_bytes: int = 64 << 20
    silent_s: float = 5.0
    short_s: float = 30.0
    drain_s: float = 5.0
    linger_s: float = 30.0
    beyond_s: float = 5.0
    quarantine_limit: int = 8
    quarantine_s: float = 1.0
    rebuilds: int = 3

    @property
    def patience(self) -> Patience:
        """With the peer of an open transfer."""
        return Patience(self.silent_s, self.short_s)

    @property
    def last_patience(self) -> Patience:
        """With the peer of a transfer that is over."""
        return Patience(self.drain_s, max(self.drain_s, self.short_s))

    @property
    def overdue_patience(self) -> Patience:
        """Of a receiver with what was sent to it: its sender has given that up, or its link says that it was taken."""
        return Patience(self.silent_s + self.beyond_s, self.short_s + self.beyond_s)


@dataclass(frozen=True, slots=True)
class Site:
    """One worker's side of every transfer. clock: monotonic seconds."""

    link: Link
    link_name: str
    pages: PagePort
    send_slabs: SlabPool
    receive_slabs: SlabPool
    peers: Peers
    sources: Sources
    throughput: Throughput
    options: TransferOptions
    metrics: TransferMetrics
    report: Callable[[TransferReport], None]
    clock: Callable[[], float]

    def for_blocks_of(self, ticket: Ticket) -> "Site":
        """The same for one transfer, whose blocks are the ticket's wire blocks."""
        pages = wire_pages(self.pages, ticket.wire.block_tokens)
        return self if pages is self.pages else replace(self, pages=pages)

    def count_refused(self, refusal: Refusal) -> None:
        self.metrics.refused.labels(refusal.value).inc()

    def close_books(self, report: TransferReport) -> None:
        """Count a transfer's end and hand its report on."""
        self.metrics.transfers.labels(report.side.value, report.status.value).inc()
        self.metrics.messages.labels(report.side.value).inc(report.messages)
        self.metrics.seconds.labels(report.side.value).observe(report.seconds)
        self.report(report)
